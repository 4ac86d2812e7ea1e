// Sinkhorn's balance of a choice: rows and columns of exp(x) are scaled in turn until every row has the same sum and
// every column nearly the same.
//
//   y[r, c] = exp(x[r, c]) a[r] b[c],   a[r] = 1 / (t (sum_c b[c] exp(x[r, c]) + 1e-8))
//                                       b[c] = 1 / (e (sum_r a[r] exp(x[r, c]) + 1e-8)),   b = 1 at first
//
// until the mean of |b - b before| is at most 1e-4, or 1000 rounds are over.
//
// x  (t, e)  fp32 | fp64
// y  (t, e)  fp64: also for overflow's sake, exp of 89 is none of fp32's numbers
// On a GPU the kernel finds the end by itself; the reference asks the device in every round.
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
