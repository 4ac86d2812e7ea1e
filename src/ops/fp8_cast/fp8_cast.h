// Casts to eight bits in one pass that scales, rounds, and on request transposes and finds amax.
//
//   values = fp8(clamp(x * scale, -max_fp8, max_fp8))      transposed = values^T      amax = max(amax, |x|)
//
// Wide, rounded once, to nearest, ties to even; infinities become the largest number, NaN stays. max_fp8 is 448 for
// E4M3, 240 for its fnuz form (no infinities, no negative zero; AMD's gfx942), 57344 for both E5M2. Source:
// arXiv:2209.05433 (FP8).
//
// x      (rows, columns)  floating; rows may be strided
// scale  0-d or (R, C)    wide, contiguous, positive. R is 1 (blocks of all rows), the number of rows, or
//                         ceil(rows / 128) (blocks of 128 rows, the last maybe shorter); C likewise
// dtype                   Float8_e4m3fn | Float8_e5m2 | Float8_e4m3fnuz | Float8_e5m2fnuz
// amax                    see ops/amax.h
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/operator.h"

namespace megalith::ops {

struct Fp8Cast {
  at::Tensor values;      // contiguous
  at::Tensor transposed;  // (columns, rows), contiguous; undefined unless requested
};
Fp8Cast fp8_cast(const at::Tensor& x, const at::Tensor& scale, at::ScalarType dtype, bool with_transposed = false,
                 const at::Tensor& amax = {}, Kernels kernels = Kernels::kFused);

double largest_of_fp8(at::ScalarType dtype);

struct Fp8CastTable {
  Fp8Cast (*cast)(const at::Tensor& x, const at::Tensor& scale, at::ScalarType dtype, bool with_transposed,
                  const at::Tensor& amax);
};
extern const Fp8CastTable kFp8CastReference;
extern const Operator<Fp8CastTable> kFp8Cast;

}  // namespace megalith::ops
