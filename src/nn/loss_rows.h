// Logit rows that the head holds at a time: more mean fewer passes over the weight's gradient, most of the head's
// memory traffic on a GPU. 1,024 times the largest power of two (at least 1) that fits in an eighth of the memory not
// held by this process's tensors at the first loss: reproducible on a device, as rows affect the order of sums.
#pragma once

#include <cstdint>

namespace megalith {

inline constexpr int64_t kFewestLossRows = 1024;

// row_bytes   at least 1
// free_bytes  may be negative, if other processes hold memory
constexpr int64_t loss_rows(int64_t row_bytes, int64_t free_bytes) {
  constexpr int64_t kPart = 8, kMostLossRows = kFewestLossRows << 10;
  int64_t rows = kFewestLossRows;
  // Dividing avoids overflow.
  while (rows < kMostLossRows && 2 * rows <= free_bytes / kPart / row_bytes) rows *= 2;
  return rows;
}

}  // namespace megalith
