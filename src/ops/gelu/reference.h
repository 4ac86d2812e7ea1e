// The GELU operators composed from ATen; see ops/gelu. Those that are no backward are differentiated by ATen's
// autograd. `form` is a GeluForm's number.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace megalith::ops::reference {

at::Tensor bias_gelu(const at::Tensor& x, const std::optional<at::Tensor>& bias, int64_t form);
at::Tensor bias_gelu_backward(const at::Tensor& dy, const at::Tensor& x, const std::optional<at::Tensor>& bias,
                              int64_t form);
at::Tensor geglu(const at::Tensor& gate_up, int64_t form);
at::Tensor geglu_backward(const at::Tensor& dy, const at::Tensor& gate_up, int64_t form);
at::Tensor bias_squared_relu(const at::Tensor& x, const std::optional<at::Tensor>& bias);
at::Tensor bias_squared_relu_backward(const at::Tensor& dy, const at::Tensor& x, const std::optional<at::Tensor>& bias);

}  // namespace megalith::ops::reference
