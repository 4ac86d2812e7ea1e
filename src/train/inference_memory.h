// What a rank will hold while a model evaluates or generates, before anything is allocated: as memory_estimate.h has it
// for training, with the same owners, and keys and values instead of gradients.
#pragma once

#include <cstdint>

#include "models/model.h"
#include "train/memory_check.h"
#include "train/memory_estimate.h"

namespace megalith {

// One forward pass.
struct InferenceShape {
  int64_t rows = 1;
  int64_t length = 0;            // tokens of a row, over all ranks that share it
  int64_t cached_positions = 0;  // of a row, with those that are still to come; 0: no keys and values are kept
  HeadOutput head = HeadOutput::kTokenLosses;
};

// rank  of the run's world
MemoryEstimate estimate_inference(const Resolved& resolved, int rank, const InferenceShape& shape);

// The passes of `megalith evaluate` for this configuration.
MemoryEstimate estimate_evaluation(const Resolved& resolved, int rank);

// The passes of `megalith generate`: the prompt, then a token at a time.
MemoryMeasure estimate_generation(int64_t prompt_length, int64_t max_new_tokens);

}  // namespace megalith
