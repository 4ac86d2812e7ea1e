// Segments, lengths and labels for rows that have only tokens, such as a check's.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "data/batch.h"

namespace megalith {

struct DrawnSegments {
  at::Tensor types;    // (b, s) int64: 1 in the second segment; 0 in the first and at padding
  at::Tensor lengths;  // (b) int64: tokens that are not padding, at least half of s
  at::Tensor labels;   // (b) int64: 0 … num_labels - 1
};

// By the key and the row's sample_index, so the same in every layout.
DrawnSegments draw_segments(const Batch& rows, uint64_t key, int64_t num_labels);

}  // namespace megalith
