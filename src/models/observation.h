// What a forward pass tells beside its results: numbers that are summed up over a step's microbatches and ranks, for
// the record and for what the model itself moves after a step. The trainer reduces them and knows none by name.
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
  kMean,  // over all that was observed: every observation counts alike
  kMax,
};

// What a layer with experts reports: how often each expert was chosen, before any choice was dropped, and how many
// choices were dropped where experts have a capacity.
inline constexpr std::string_view kExpertTokens = "expert_tokens", kExpertsDropped = "experts_dropped";

// One that some chunk of the whole model makes. All ranks have the same list, in one order.
struct ObservationSpec {
  std::string name;    // "expert_tokens"
  int64_t layer = -1;  // number in the whole model; -1: of no layer
  int64_t size = 1;    // numbers
  ObservationReduce reduce = ObservationReduce::kSum;
  // Axes of the dense view whose ranks observe different things. Over the others all see the same, and the first
  // counts.
  AxisSet axes;
};

// One forward pass's.
struct Observation {
  std::string name;
  int64_t layer = -1;
  at::Tensor values;  // (size), any dtype, detached, on the chunk's device
};

// The step's, over all microbatches and ranks.
struct ObservedTensor {
  const ObservationSpec* spec = nullptr;
  at::Tensor values;  // (size) float64
};

}  // namespace megalith
