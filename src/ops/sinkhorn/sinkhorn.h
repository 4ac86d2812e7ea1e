// Sinkhorn's balance: scales rows and columns of exp(x) in turn until rows have equal sums and columns nearly so.
//
//   y[r, c] = exp(x[r, c]) a[r] b[c],   a[r] = 1 / (t (sum_c b[c] exp(x[r, c]) + 1e-8))
//                                       b[c] = 1 / (e (sum_r a[r] exp(x[r, c]) + 1e-8)),   b = 1 at first
//
// until the mean of |b - b before| is at most 1e-4, or for 1000 rounds.
//
// x  (t, e)  fp32 | fp64
// y  (t, e)  fp64: exp(89) overflows fp32
// The GPU kernel ends by itself; the reference synchronises in every round.
// Source: Megatron-LM, megatron/core/transformer/moe/moe_utils.py, sinkhorn.
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/operator.h"

namespace megalith::ops {

at::Tensor sinkhorn(const at::Tensor& x, Kernels kernels = Kernels::kFused);

struct SinkhornTable {
  at::Tensor (*sinkhorn)(const at::Tensor& x);
};
extern const SinkhornTable kSinkhornReference;
extern const Operator<SinkhornTable> kSinkhorn;

}  // namespace megalith::ops
