// Counter-based dropout, keyed by global position: every layout and recomputation drops the same elements.
//
//   y[r, c] = u(key, row_ids[r], column_start + c) >= p ? x[r, c] / (1 - p) : 0
//
// u is uniform in [0, 1): Philox4x32-10's (core/philox.h) word (c mod 4) of the block with counter (row id, c / 4), c
// counted in the whole tensor.
//
// x             (t, h)  floating
// row_ids       (t)     int64: global row numbers (sample * sequence length + position)
// column_start          the first column's, in the whole tensor
// p                     in [0, 1)
// Backward is the same operator on dy.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "ops/operator.h"

namespace megalith::ops {

at::Tensor dropout(const at::Tensor& x, const at::Tensor& row_ids, int64_t column_start, double p, uint64_t key,
                   Kernels kernels = Kernels::kFused);

struct DropoutTable {
  at::Tensor (*dropout)(const at::Tensor& x, const at::Tensor& row_ids, int64_t column_start, double p, uint64_t key);
};
extern const DropoutTable kDropoutReference;
extern const Operator<DropoutTable> kDropout;

}  // namespace megalith::ops
