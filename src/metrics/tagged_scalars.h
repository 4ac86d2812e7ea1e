// A record as named numbers, under the tags that Megatron-LM gives them: what TensorBoard, Weights & Biases and MLflow
// get.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "metrics/log_options.h"
#include "metrics/step_record.h"

namespace megalith {

using Scalars = std::vector<std::pair<std::string, double>>;

struct TaggedScalars {
  Scalars both;             // TensorBoard draws them over iterations, and over samples
  Scalars over_iterations;  // loads of experts, times and memory
};

// The options say which: log_timers_to_tensorboard and the like.
TaggedScalars tagged_scalars(const StepRecord& record, const LogOptions& options);

// "lm loss validation", "lm loss validation ppl", …
Scalars tagged_scalars(const ValidationRecord& record, const LogOptions& options);

}  // namespace megalith
