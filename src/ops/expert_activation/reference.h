// expert_activation composed from ATen; see ops/expert_activation. kind is the number of an ActivationKind. The
// forward is differentiated by ATen's autograd.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace megalith::ops::reference {

at::Tensor expert_activation(const at::Tensor& x, const std::optional<at::Tensor>& weights, int64_t kind,
                             bool is_gated);
std::tuple<at::Tensor, at::Tensor> expert_activation_backward(const at::Tensor& dy, const at::Tensor& x,
                                                              const std::optional<at::Tensor>& weights, int64_t kind,
                                                              bool is_gated);

}  // namespace megalith::ops::reference
