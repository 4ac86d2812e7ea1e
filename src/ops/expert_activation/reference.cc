// The definition of expert_activation, in ATen's operators.
#include "ops/expert_activation/reference.h"

#include <ATen/ATen.h>

#include "core/error.h"
#include "ops/arguments.h"
#include "ops/expert_activation/kind.h"
#include "ops/library.h"

namespace megalith::ops::reference {
namespace {

at::Tensor activate(const at::Tensor& v, int64_t kind) {
  switch (static_cast<ActivationKind>(kind)) {
    case ActivationKind::kSilu:
      return at::silu(v);
    case ActivationKind::kGelu:
      return at::gelu(v);
    case ActivationKind::kGeluTanh:
      return at::gelu(v, "tanh");
    case ActivationKind::kSquaredRelu:
      return at::relu(v).square();
  }
  throw UserError(fmt::format("expert_activation: there is no activation {}", kind));
}

// dv for the gradient of act(v)
at::Tensor activate_backward(const at::Tensor& grad, const at::Tensor& v, int64_t kind) {
  switch (static_cast<ActivationKind>(kind)) {
    case ActivationKind::kSilu:
      return at::silu_backward(grad, v);
    case ActivationKind::kGelu:
      return at::gelu_backward(grad, v);
    case ActivationKind::kGeluTanh:
      return at::gelu_backward(grad, v, "tanh");
    case ActivationKind::kSquaredRelu:
      return grad * 2 * at::relu(v);
  }
  throw UserError(fmt::format("expert_activation: there is no activation {}", kind));
}

}  // namespace

at::Tensor expert_activation(const at::Tensor& x, const std::optional<at::Tensor>& weights, int64_t kind,
                             bool is_gated) {
  const at::ScalarType dtype = x.scalar_type(), wide = wide_dtype(dtype);
  at::Tensor y;
  if (is_gated) {
    const auto parts = x.chunk(2, -1);
    y = activate(parts[0].to(wide), kind).to(dtype).to(wide) * parts[1];
  } else {
    y = activate(x.to(wide), kind);
  }
  if (weights.has_value()) y = y * weights->unsqueeze(1);
  return y.to(dtype);
}

std::tuple<at::Tensor, at::Tensor> expert_activation_backward(const at::Tensor& dy, const at::Tensor& x,
                                                              const std::optional<at::Tensor>& weights, int64_t kind,
                                                              bool is_gated) {
  const at::ScalarType dtype = x.scalar_type(), wide = wide_dtype(dtype);
  const at::Tensor grad = dy.to(wide);
  const at::Tensor weighted = weights.has_value() ? grad * weights->unsqueeze(1) : grad;
  const auto dweights = [&](const at::Tensor& y) {
    return weights.has_value() ? (grad * y).sum(1) : at::empty({0}, x.options().dtype(wide));
  };
  if (!is_gated) {
    const at::Tensor v = x.to(wide);
    return {activate_backward(weighted, v, kind).to(dtype), dweights(activate(v, kind))};
  }
  const auto parts = x.chunk(2, -1);
  const at::Tensor gate = parts[0].to(wide), up = parts[1].to(wide), act = activate(gate, kind).to(dtype).to(wide);
  const at::Tensor dx = at::cat({activate_backward(weighted * up, gate, kind), weighted * act}, 1).to(dtype);
  return {dx, dweights(act * up)};
}

}  // namespace megalith::ops::reference

TORCH_LIBRARY_IMPL(megalith, CompositeExplicitAutograd, m) {
  namespace reference = megalith::ops::reference;
  m.impl("expert_activation", TORCH_FN(reference::expert_activation));
  m.impl("expert_activation_forward", TORCH_FN(reference::expert_activation));
  m.impl("expert_activation_backward", TORCH_FN(reference::expert_activation_backward));
}
