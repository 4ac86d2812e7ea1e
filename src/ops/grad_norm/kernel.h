// Arguments of squared_norm's kernels.
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
// sums[i] = sum of squares of piece i, in an order that depends only on its length.
MEGALITH_DECLARE_CPU_KERNEL(squared_sums, (const SquaredPiece* pieces, int64_t num_pieces, double* sums));
}  // namespace cpu

namespace gpu {

// Elements of a tensor per block of threads.
inline constexpr int64_t kSquaredPieceElements = 1 << 15;
inline constexpr int64_t num_squared_pieces(int64_t elements) {
  return (elements + kSquaredPieceElements - 1) / kSquaredPieceElements;
}

// The sum of squares and number of zeros of many tensors, in double, in an order that depends only on dtypes and sizes.
// Tensors need no alignment. Every element is read once.
struct GradientSums {
  const SquaredPiece* tensors;  // on the host; may change once the call has returned
  int64_t num_tensors;
  double* scratch;  // (2, sum of num_squared_pieces), written before it is read
  double* sums;     // (2): squares, zeros
};
void gradient_sums(const GradientSums& a, void* stream);

}  // namespace gpu

}  // namespace megalith::ops
