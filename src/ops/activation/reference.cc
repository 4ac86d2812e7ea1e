// In ATen's operators.
#include <ATen/ATen.h>

#include <cmath>
#include <numbers>

#include "ops/activation/activation.h"
#include "ops/arguments.h"

namespace megalith::ops {
namespace reference {
namespace {

using at::Tensor;

// tanh(u(x)) of the tanh form, and du/dx
struct TanhParts {
  Tensor tanh, slope;
};

TanhParts tanh_parts(const Tensor& x) {
  const double scale = std::sqrt(2 / std::numbers::pi), cubic = 0.044715;
  const Tensor square = x.square();
  return {(scale * (x + cubic * x * square)).tanh(), scale * (1 + 3 * cubic * square)};
}

Tensor wide_activation(const Tensor& x, ActivationKind kind) {
  if (kind == ActivationKind::kSquaredRelu) return at::relu(x).square();
  if (kind == ActivationKind::kGeluTanh) return 0.5 * x * (1 + tanh_parts(x).tanh);
  return 0.5 * x * at::erfc(-x / std::numbers::sqrt2);
}

// dy times the slope at x.
Tensor wide_gradient(const Tensor& dy, const Tensor& x, ActivationKind kind) {
  if (kind == ActivationKind::kSquaredRelu) return dy * 2 * at::relu(x);
  if (kind == ActivationKind::kGeluTanh) {
    const auto [tanh, slope] = tanh_parts(x);
    return dy * (0.5 * (1 + tanh) + 0.5 * x * (1 - tanh.square()) * slope);
  }
  const Tensor density = (-0.5 * x.square()).exp() / std::sqrt(2 * std::numbers::pi);
  return dy * (0.5 * at::erfc(-x / std::numbers::sqrt2) + x * density);
}

Tensor activation(const Tensor& x, ActivationKind kind, bool is_gated) {
  if (is_gated) {
    const auto parts = x.chunk(2, -1);
    return reference::activation(parts[0], kind, /*is_gated=*/false) * parts[1];
  }
  return wide_activation(x.to(wide_dtype(x.scalar_type())), kind).to(x.scalar_type());
}

Tensor activation_backward(const Tensor& dy, const Tensor& x, ActivationKind kind, bool is_gated) {
  const at::ScalarType dtype = x.scalar_type(), wide = wide_dtype(dtype);
  const Tensor grad = dy.to(wide);
  if (!is_gated) return wide_gradient(grad, x.to(wide), kind).to(dtype);
  const auto parts = x.chunk(2, -1);
  const Tensor dgate = wide_gradient(grad * parts[1].to(wide), parts[0].to(wide), kind);
  const Tensor dup = grad * reference::activation(parts[0], kind, /*is_gated=*/false).to(wide);
  return at::cat({dgate, dup}, -1).to(dtype);
}

}  // namespace
}  // namespace reference

constexpr ActivationTable kActivationReference{.forward = reference::activation,
                                               .backward = reference::activation_backward};

}  // namespace megalith::ops
