// In ATen's operators.
#include <ATen/ATen.h>

#include <cmath>
#include <numbers>

#include "ops/arguments.h"
#include "ops/gelu/gelu.h"

namespace megalith::ops {
namespace reference {
namespace {

using at::Tensor;

// Wide.
Tensor pre_activation(const Tensor& x, const Tensor& bias) {
  const Tensor wide = x.to(wide_dtype(x.scalar_type()));
  return bias.defined() ? wide + bias.to(wide.scalar_type()) : wide;
}

// tanh(u(x)) of the tanh form, and du/dx
struct TanhParts {
  Tensor tanh, slope;
};

TanhParts tanh_parts(const Tensor& x) {
  const double scale = std::sqrt(2 / std::numbers::pi), cubic = 0.044715;
  const Tensor square = x.square();
  return {(scale * (x + cubic * x * square)).tanh(), scale * (1 + 3 * cubic * square)};
}

Tensor wide_gelu(const Tensor& x, GeluForm form) {
  if (form == GeluForm::kTanh) return 0.5 * x * (1 + tanh_parts(x).tanh);
  if (form == GeluForm::kErf) return 0.5 * x * at::erfc(-x / std::numbers::sqrt2);
  return x * (1.702 * x).sigmoid();
}

Tensor wide_gelu_slope(const Tensor& x, GeluForm form) {
  if (form == GeluForm::kTanh) {
    const auto [tanh, slope] = tanh_parts(x);
    return 0.5 * (1 + tanh) + 0.5 * x * (1 - tanh.square()) * slope;
  }
  if (form == GeluForm::kErf) {
    const Tensor density = (-0.5 * x.square()).exp() / std::sqrt(2 * std::numbers::pi);
    return 0.5 * at::erfc(-x / std::numbers::sqrt2) + x * density;
  }
  const Tensor s = (1.702 * x).sigmoid();
  return s * (1 + 1.702 * x * (1 - s));
}

Tensor bias_gelu(const Tensor& x, const Tensor& bias, GeluForm form) {
  return wide_gelu(pre_activation(x, bias), form).to(x.scalar_type());
}

Tensor bias_gelu_backward(const Tensor& dy, const Tensor& x, const Tensor& bias, GeluForm form) {
  const Tensor wide = pre_activation(x, bias);
  return (dy.to(wide.scalar_type()) * wide_gelu_slope(wide, form)).to(x.scalar_type());
}

Tensor geglu(const Tensor& gate_up, GeluForm form) {
  const auto parts = gate_up.chunk(2, -1);
  return reference::bias_gelu(parts[0], {}, form) * parts[1];
}

Tensor geglu_backward(const Tensor& dy, const Tensor& gate_up, GeluForm form) {
  const at::ScalarType dtype = gate_up.scalar_type(), wide = wide_dtype(dtype);
  const auto parts = gate_up.chunk(2, -1);
  const Tensor grad = dy.to(wide);
  const Tensor dgate = grad * parts[1].to(wide) * wide_gelu_slope(parts[0].to(wide), form);
  const Tensor dup = grad * reference::bias_gelu(parts[0], {}, form).to(wide);
  return at::cat({dgate, dup}, -1).to(dtype);
}

Tensor bias_squared_relu(const Tensor& x, const Tensor& bias) {
  return at::relu(pre_activation(x, bias)).square().to(x.scalar_type());
}

Tensor bias_squared_relu_backward(const Tensor& dy, const Tensor& x, const Tensor& bias) {
  const Tensor wide = pre_activation(x, bias);
  return (dy.to(wide.scalar_type()) * 2 * at::relu(wide)).to(x.scalar_type());
}

}  // namespace
}  // namespace reference

constexpr GeluTable kGeluReference{.bias_gelu = reference::bias_gelu,
                                   .bias_gelu_backward = reference::bias_gelu_backward,
                                   .geglu = reference::geglu,
                                   .geglu_backward = reference::geglu_backward,
                                   .bias_squared_relu = reference::bias_squared_relu,
                                   .bias_squared_relu_backward = reference::bias_squared_relu_backward};

}  // namespace megalith::ops
