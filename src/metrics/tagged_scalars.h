// Records as numbers under Megatron-LM's tags, for TensorBoard, Weights & Biases and MLflow.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "metrics/log_options.h"
#include "metrics/step_record.h"

namespace megalith {

using Scalars = std::vector<std::pair<std::string, double>>;

struct TaggedScalars {
  Scalars both;             // over iterations and samples
  Scalars over_iterations;  // expert loads, times, memory
};

// As options select, such as log_timers_to_tensorboard.
TaggedScalars tagged_scalars(const StepRecord& record, const LogOptions& options);

// "lm loss validation", "lm loss validation ppl", …
Scalars tagged_scalars(const ValidationRecord& record, const LogOptions& options);

}  // namespace megalith
