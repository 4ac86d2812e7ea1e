// A rank's memory in evaluation or generation, before allocation: as memory_estimate.h, with keys and values instead of
// gradients.
#pragma once

#include <cstdint>

#include "models/model.h"
#include "train/memory_check.h"
#include "train/memory_estimate.h"

namespace megalith {

struct InferenceShape {
  int64_t rows = 1;
  int64_t length = 0;            // tokens of a row, over all ranks that share it
  int64_t cached_positions = 0;  // per row, including future ones; 0: no cache
  HeadOutput head = HeadOutput::kTokenLosses;
};

// rank  in the run's world
MemoryEstimate estimate_inference(const Resolved& resolved, int rank, const InferenceShape& shape);

// For `megalith evaluate` with this configuration.
MemoryEstimate estimate_evaluation(const Resolved& resolved, int rank);

// For `megalith generate`: prompts one at a time, then single tokens of `rows` rows together.
MemoryMeasure estimate_generation(int64_t prompt_length, int64_t max_new_tokens, int64_t rows = 1);

}  // namespace megalith
