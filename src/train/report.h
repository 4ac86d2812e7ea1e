// The start-up report: what a run is about to do, in the few numbers a person checks first.
#pragma once

#include <cstdint>
#include <string>

#include "train/config.h"
#include "train/setup.h"

namespace megalith {

// Bytes by owner on this rank.
struct MemoryByOwner {
  int64_t parameters = 0, gradients = 0, optimizer = 0;
  int64_t activations = 0;    // measured without data, see activation_report.h
  int64_t weight_copies = 0;  // what a recipe makes of the weights, during a step
};

struct ModelNumbers {
  int64_t parameters = 0;             // of the whole model without prediction modules, padding not counted
  int64_t prediction_parameters = 0;  // of these
  int64_t active_parameters = 0;      // those of `parameters` that one token meets
  double flops_per_step = 0;          // of all ranks, Primus's count (attention not halved for causality)
  double flops_per_step_causal = 0;   // attention halved
};

// built may be on the meta device.
ModelNumbers count_model(const BuiltModel& built, const Resolved& resolved);

// Several lines, without a line break at the end. memory is left out when it is null (a dry run allocates nothing).
std::string startup_report(const Resolved& resolved, const ModelNumbers& numbers, const MemoryByOwner* memory,
                           const std::string& device_text);

}  // namespace megalith
