// The definition of expert_activation, in ATen's operators.
#include <ATen/ATen.h>

#include "core/error.h"
#include "ops/arguments.h"
#include "ops/expert_activation/expert_activation.h"

namespace megalith::ops {
namespace reference {
namespace {

at::Tensor activate(const at::Tensor& v, ActivationKind kind) {
  switch (kind) {
    case ActivationKind::kSilu:
      return at::silu(v);
    case ActivationKind::kGelu:
      return at::gelu(v);
    case ActivationKind::kGeluTanh:
      return at::gelu(v, "tanh");
    case ActivationKind::kSquaredRelu:
      return at::relu(v).square();
  }
  throw UserError(fmt::format("expert_activation: there is no activation {}", static_cast<int>(kind)));
}

// dv for the gradient of act(v)
at::Tensor activate_backward(const at::Tensor& grad, const at::Tensor& v, ActivationKind kind) {
  switch (kind) {
    case ActivationKind::kSilu:
      return at::silu_backward(grad, v);
    case ActivationKind::kGelu:
      return at::gelu_backward(grad, v);
    case ActivationKind::kGeluTanh:
      return at::gelu_backward(grad, v, "tanh");
    case ActivationKind::kSquaredRelu:
      return grad * 2 * at::relu(v);
  }
  throw UserError(fmt::format("expert_activation: there is no activation {}", static_cast<int>(kind)));
}

at::Tensor expert_activation(const at::Tensor& x, const at::Tensor& weights, ExpertActivation activation) {
  const at::ScalarType dtype = x.scalar_type(), wide = wide_dtype(dtype);
  at::Tensor y;
  if (activation.is_gated) {
    const auto parts = x.chunk(2, -1);
    y = activate(parts[0].to(wide), activation.kind).to(dtype).to(wide) * parts[1];
  } else {
    y = activate(x.to(wide), activation.kind);
  }
  if (weights.defined()) y = y * weights.unsqueeze(1);
  return y.to(dtype);
}

std::tuple<at::Tensor, at::Tensor> expert_activation_backward(const at::Tensor& dy, const at::Tensor& x,
                                                              const at::Tensor& weights, ExpertActivation activation) {
  const at::ScalarType dtype = x.scalar_type(), wide = wide_dtype(dtype);
  const at::Tensor grad = dy.to(wide);
  const at::Tensor weighted = weights.defined() ? grad * weights.unsqueeze(1) : grad;
  const auto dweights = [&](const at::Tensor& y) {
    return weights.defined() ? (grad * y).sum(1) : at::empty({0}, x.options().dtype(wide));
  };
  if (!activation.is_gated) {
    const at::Tensor v = x.to(wide);
    return {activate_backward(weighted, v, activation.kind).to(dtype), dweights(activate(v, activation.kind))};
  }
  const auto parts = x.chunk(2, -1);
  const at::Tensor gate = parts[0].to(wide), up = parts[1].to(wide),
                   act = activate(gate, activation.kind).to(dtype).to(wide);
  const at::Tensor dx = at::cat({activate_backward(weighted * up, gate, activation.kind), weighted * act}, 1).to(dtype);
  return {dx, dweights(act * up)};
}

}  // namespace
}  // namespace reference

constexpr ExpertActivationTable kExpertActivationReference{.forward = reference::expert_activation,
                                                           .backward = reference::expert_activation_backward};

}  // namespace megalith::ops
