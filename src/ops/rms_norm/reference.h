// RMS normalisation composed from ATen; see ops/rms_norm. rms_norm is differentiated by ATen's autograd.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace megalith::ops::reference {

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);
std::tuple<at::Tensor, at::Tensor> rms_norm_forward(const at::Tensor& x, const at::Tensor& weight, double eps);
std::tuple<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& dy, const at::Tensor& x,
                                                     const at::Tensor& weight, const at::Tensor& inv_rms);
std::tuple<at::Tensor, at::Tensor, at::Tensor> add_rms_norm_forward(const at::Tensor& x, const at::Tensor& residual,
                                                                    const at::Tensor& weight, double eps);
std::tuple<at::Tensor, at::Tensor> add_rms_norm_backward(const at::Tensor& dy, const at::Tensor& dsum,
                                                         const at::Tensor& sum, const at::Tensor& weight,
                                                         const at::Tensor& inv_rms);

}  // namespace megalith::ops::reference
