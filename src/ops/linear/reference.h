// Products of a linear layer and of the embedding composed from ATen. Arguments as in ops/linear.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace megalith::ops::reference {

at::Tensor linear_forward(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias);
at::Tensor linear_dgrad(const at::Tensor& dy, const at::Tensor& w);
void linear_wgrad_(const at::Tensor& dw, const at::Tensor& dy, const at::Tensor& x, bool accumulate);
void bias_grad_(const at::Tensor& db, const at::Tensor& dy);
at::Tensor embedding_forward(const at::Tensor& ids, const at::Tensor& table, int64_t start);
void embedding_wgrad_(const at::Tensor& dw, const at::Tensor& ids, const at::Tensor& dy, int64_t start);

}  // namespace megalith::ops::reference
