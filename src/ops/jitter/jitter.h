// Multiplies elements by uniform numbers near one, keyed by global position: every layout, device and recomputation
// sees the same noise.
//
//   y[r, c] = x[r, c] noise[r, c],   noise = 1 - eps + 2 eps u(key, row_ids[r], c)
//
// u is as in ops/dropout. noise is computed in fp64, rounded to fp32 (not for fp64 x) and then to x's dtype; so is the
// product.
//
// x        (t, h)  floating
// row_ids  (t)     int64: global row numbers
// eps              in [0, 1)
// Backward is the same operator on dy.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "ops/operator.h"

namespace megalith::ops {

at::Tensor jitter(const at::Tensor& x, const at::Tensor& row_ids, double eps, uint64_t key,
                  Kernels kernels = Kernels::kFused);

struct JitterTable {
  at::Tensor (*jitter)(const at::Tensor& x, const at::Tensor& row_ids, double eps, uint64_t key);
};
extern const JitterTable kJitterReference;
extern const Operator<JitterTable> kJitter;

}  // namespace megalith::ops
