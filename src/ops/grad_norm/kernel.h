// squared_norm's kernels.
#pragma once

#include <cstdint>

#include "ops/cpu/capability.h"
#include "ops/dtype.h"

namespace megalith::ops {

struct SquaredPiece {
  Dtype dtype;
  const void* values;
  int64_t count;
};

namespace cpu {
// sums[i]: of piece i, in an order that depends only on its length.
MEGALITH_DECLARE_CPU_KERNEL(squared_sums, (const SquaredPiece* pieces, int64_t num_pieces, double* sums));
}  // namespace cpu

namespace gpu {

// Per block of threads.
inline constexpr int64_t kSquaredPieceElements = 1 << 15;
inline constexpr int64_t num_squared_pieces(int64_t elements) {
  return (elements + kSquaredPieceElements - 1) / kSquaredPieceElements;
}

// In double, in an order that depends only on dtypes and sizes. No alignment needed; elements are read once.
struct GradientSums {
  const SquaredPiece* tensors;  // on the host; may change after the call
  int64_t num_tensors;
  double* scratch;  // (2, sum of num_squared_pieces)
  double* sums;     // (2): squares, zeros
};
void gradient_sums(const GradientSums& a, void* stream);

}  // namespace gpu

}  // namespace megalith::ops
