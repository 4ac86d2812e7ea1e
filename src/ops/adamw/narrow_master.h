// A master as a bf16 weight and the 16 bits that it lacks.
//
// On float bits as integers, remainder = master - (weight << 16), the weight being the nearest bf16, ties to even. It
// is in [-2^15, 2^15], one number too many: both ends are ties that round to the same even weight. The upper is stored
// as the lower, marked by a negative exp_avg_sq (-0 for 0), otherwise never negative. Every float survives; a NaN stays
// some NaN.
#pragma once

#include <ATen/core/Tensor.h>

namespace megalith::ops {

// weight      bf16
// remainder   int16
// exp_avg_sq  bf16 or fp32; only its sign is read
// returns     fp32. All have one shape, any strides.
at::Tensor join_master(const at::Tensor& weight, const at::Tensor& remainder, const at::Tensor& exp_avg_sq);

// The inverse, in place; exp_avg_sq changes only its sign.
void split_master(const at::Tensor& master, const at::Tensor& weight, const at::Tensor& remainder,
                  const at::Tensor& exp_avg_sq);

}  // namespace megalith::ops
