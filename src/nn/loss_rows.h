// The number of logit rows that the language-model head holds at a time. More rows mean fewer passes over the weight's
// gradient, most of the head's memory traffic on a GPU.
//
// They take an eighth of the memory free at the first loss: 1,024 rows times the largest power of two that fits, at
// least 1,024. Free means not held by this process's tensors, which is reproducible for a configuration on a device:
// rows affect the order of sums, and powers of two absorb small differences.
#pragma once

#include <cstdint>

namespace megalith {

inline constexpr int64_t kFewestLossRows = 1024;

// row_bytes   of one row of logits, at least 1
// free_bytes  may be negative, if others hold what this process counts as free
constexpr int64_t loss_rows(int64_t row_bytes, int64_t free_bytes) {
  constexpr int64_t kPart = 8, kMostLossRows = kFewestLossRows << 10;
  int64_t rows = kFewestLossRows;
  // Divided rather than multiplied, to avoid overflow.
  while (rows < kMostLossRows && 2 * rows <= free_bytes / kPart / row_bytes) rows *= 2;
  return rows;
}

}  // namespace megalith
