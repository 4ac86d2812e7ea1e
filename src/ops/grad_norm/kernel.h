// What the kernels of squared_norm get. Free of torch's headers.
#pragma once

#include <cstdint>

#include "ops/cpu/capability.h"
#include "ops/dtype.h"

namespace megalith::ops {

// Elements of one tensor, behind one another.
struct SquaredPiece {
  Dtype dtype;
  const void* values;
  int64_t count;
};

namespace cpu {
// sums[i] = sum of squares of piece i, in an order that depends only on its length.
MEGALITH_DECLARE_CPU_KERNEL(squared_sums, (const SquaredPiece* pieces, int64_t num_pieces, double* sums));
}  // namespace cpu

// Pointers on the device, and the stream as its native handle.
namespace gpu {

// A block of threads sums so many elements of a tensor.
inline constexpr int64_t kSquaredPieceElements = 1 << 15;
inline constexpr int64_t num_squared_pieces(int64_t elements) {
  return (elements + kSquaredPieceElements - 1) / kSquaredPieceElements;
}

// The sum of squares of many tensors and how many of their elements are zero, in double, in an order that depends only
// on their dtypes and sizes. A tensor may begin at any element. Bytes that must move: every element is read once.
struct GradientSums {
  const SquaredPiece* tensors;  // on the host, which may change them when the call has returned
  int64_t num_tensors;
  double* scratch;  // (2, sum of num_squared_pieces), written before it is read
  double* sums;     // (2): squares, zeros
};
void gradient_sums(const GradientSums& a, void* stream);

}  // namespace gpu

}  // namespace megalith::ops
