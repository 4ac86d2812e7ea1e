// A master as a bf16 weight and the 16 bits that it lacks, on any device.
//
// With the bits of a float as a whole number, remainder = master - (weight << 16), where the weight is the nearest
// bf16, ties to even. It lies in [-2^15, 2^15], one number more than 16 bits have, and the two ends are the two ties
// that round to the same even weight: the upper is kept as the lower one, and marked by a negative exp_avg_sq (-0 where
// that is 0). So every float comes back as it was, zeros, denormal numbers and infinities included, also those that
// round to an infinite weight; a NaN comes back as some NaN.
#pragma once

#include <ATen/core/Tensor.h>

namespace megalith::ops {

// weight      bf16
// remainder   int16
// exp_avg_sq  bf16 or fp32; only its sign is read
// returns     fp32. All have one shape and any strides.
at::Tensor join_master(const at::Tensor& weight, const at::Tensor& remainder, const at::Tensor& exp_avg_sq);

// The inverse, in place; of exp_avg_sq only the sign changes.
void split_master(const at::Tensor& master, const at::Tensor& weight, const at::Tensor& remainder,
                  const at::Tensor& exp_avg_sq);

}  // namespace megalith::ops
