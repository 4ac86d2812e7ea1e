// The products of a linear layer into given memory, for operators that fuse them with others. Arguments as in
// ops/linear, checked; results may be strided in t.
#pragma once

#include <ATen/core/Tensor.h>

namespace megalith::ops::cpu {

// Whether bf16 products of at least 64 rows, columns and terms are our own, which repeat to the bit for any number of
// threads; all others are LibTorch's.
bool has_own_bf16_products();

// y = x w^T + bias
void linear_forward_out(const at::Tensor& y, const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias);

// dx = dy w
void linear_dgrad_out(const at::Tensor& dx, const at::Tensor& dy, const at::Tensor& w);

// dw (+)= dy^T x
void linear_wgrad_(const at::Tensor& dw, const at::Tensor& dy, const at::Tensor& x, bool accumulate);

}  // namespace megalith::ops::cpu
