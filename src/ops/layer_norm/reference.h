// Layer normalisation composed from ATen; see ops/layer_norm. layer_norm is differentiated by ATen's autograd.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace megalith::ops::reference {

at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps,
                      bool zero_centered_weight);
std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm_forward(const at::Tensor& x, const at::Tensor& weight,
                                                                  const at::Tensor& bias, double eps,
                                                                  bool zero_centered_weight);
std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm_backward(const at::Tensor& dy, const at::Tensor& x,
                                                                   const at::Tensor& weight, const at::Tensor& mean,
                                                                   const at::Tensor& inv_std,
                                                                   bool zero_centered_weight);
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> add_layer_norm_forward(const at::Tensor& x,
                                                                                  const at::Tensor& residual,
                                                                                  const at::Tensor& weight,
                                                                                  const at::Tensor& bias, double eps,
                                                                                  bool zero_centered_weight);
std::tuple<at::Tensor, at::Tensor, at::Tensor> add_layer_norm_backward(const at::Tensor& dy, const at::Tensor& dsum,
                                                                       const at::Tensor& sum, const at::Tensor& weight,
                                                                       const at::Tensor& mean,
                                                                       const at::Tensor& inv_std,
                                                                       bool zero_centered_weight);

}  // namespace megalith::ops::reference
