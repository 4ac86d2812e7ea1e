// How many rows of logits the language-model head holds at a time.
//
// The more there are, the fewer times the weight's gradient is read and written, which on a GPU is most of what the
// head moves. So they take an eighth of the memory that is free when the first loss is computed: 1,024 rows times the
// largest power of two whose logits fit into that, and 1,024 where less fits. Free is what the tensors of the process
// do not hold, which is the same in every run of a configuration on a device: results depend on the rows through the
// order of sums, and powers of two keep small differences away.
#pragma once

#include <cstdint>

namespace megalith {

inline constexpr int64_t kFewestLossRows = 1024;

// row_bytes   of one row of logits, at least 1
// free_bytes  may be negative, where others hold what this process counts as free
constexpr int64_t loss_rows(int64_t row_bytes, int64_t free_bytes) {
  constexpr int64_t kPart = 8, kMostLossRows = kFewestLossRows << 10;
  int64_t rows = kFewestLossRows;
  // Divided instead of multiplied: no product can overflow.
  while (rows < kMostLossRows && 2 * rows <= free_bytes / kPart / row_bytes) rows *= 2;
  return rows;
}

}  // namespace megalith
