// Numbers a forward pass reports beside its results, summed over a step's microbatches and ranks: for the record, and
// for what the model moves after a step. The trainer reduces them without knowing their names.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "comm/mesh.h"

namespace megalith {

enum class ObservationReduce {
  kSum,
  kMean,  // over all observations, equally weighted
  kMax,
};

// Expert layers report how often each expert was chosen, before drops, and choices dropped at capacity.
inline constexpr std::string_view kExpertTokens = "expert_tokens", kExpertsDropped = "experts_dropped";

// The list is the same on all ranks, in one order.
struct ObservationSpec {
  std::string name;    // "expert_tokens"
  int64_t layer = -1;  // in the whole model; -1: no layer
  int64_t size = 1;    // numbers
  ObservationReduce reduce = ObservationReduce::kSum;
  // Axes of the dense view along which values differ; along others they agree, and the first rank's counts.
  AxisSet axes;
};

// From one forward pass.
struct Observation {
  std::string name;
  int64_t layer = -1;
  at::Tensor values;  // (size), any dtype, detached, on the chunk's device
};

// From a step, over all microbatches and ranks.
struct ObservedTensor {
  const ObservationSpec* spec = nullptr;
  at::Tensor values;  // (size) float64
};

}  // namespace megalith
