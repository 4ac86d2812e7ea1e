// A linear layer's products into given memory, with ops/linear's arguments, checked; results may be strided in t.
#pragma once

#include <ATen/core/Tensor.h>

namespace megalith::ops::cpu {

// bf16 products of at least 64 rows, columns and terms are ours, which do not depend on the number of threads.
bool has_own_bf16_products();

void linear_forward_out(const at::Tensor& y, const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias);

void linear_dgrad_out(const at::Tensor& dx, const at::Tensor& dy, const at::Tensor& w);

void linear_wgrad_(const at::Tensor& dw, const at::Tensor& dy, const at::Tensor& x, bool accumulate);

}  // namespace megalith::ops::cpu
