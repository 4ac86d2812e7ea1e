// A linear layer's products into given memory, for fused operators. Arguments are those of ops/linear, checked; results
// may be strided in t.
#pragma once

#include <ATen/core/Tensor.h>

namespace megalith::ops::cpu {

// True if bf16 products of at least 64 rows, columns and terms are ours, which do not depend on the number of threads;
// all others are LibTorch's.
bool has_own_bf16_products();

// y = x w^T + bias
void linear_forward_out(const at::Tensor& y, const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias);

// dx = dy w
void linear_dgrad_out(const at::Tensor& dx, const at::Tensor& dy, const at::Tensor& w);

// dw (+)= dy^T x
void linear_wgrad_(const at::Tensor& dw, const at::Tensor& dy, const at::Tensor& x, bool accumulate);

}  // namespace megalith::ops::cpu
