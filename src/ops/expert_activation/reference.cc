// In ATen's operators.
#include <ATen/ATen.h>

#include "core/error.h"
#include "ops/arguments.h"
#include "ops/expert_activation/expert_activation.h"

namespace megalith::ops {
namespace reference {
namespace {

constexpr double kQuickGeluSlope = 1.702;

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
    case ActivationKind::kQuickGelu:
      return v * at::sigmoid(v * kQuickGeluSlope);
    case ActivationKind::kRelu:
      return at::relu(v);
  }
  throw UserError(fmt::format("expert_activation: there is no activation {}", static_cast<int>(kind)));
}

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
    case ActivationKind::kQuickGelu: {
      const at::Tensor share = at::sigmoid(v * kQuickGeluSlope);
      return grad * (share + v * kQuickGeluSlope * share * (1 - share));
    }
    case ActivationKind::kRelu:
      return at::threshold_backward(grad, v, 0);
  }
  throw UserError(fmt::format("expert_activation: there is no activation {}", static_cast<int>(kind)));
}

// Wide: as given, and after limits and offset.
struct Gates {
  at::Tensor gate, up, limited_gate, shifted_up;
};

Gates gates_of(const at::Tensor& x, const ExpertActivation& activation) {
  const auto parts = activation.is_interleaved ? x.unflatten(1, {-1, 2}).unbind(2) : x.chunk(2, -1);
  const at::ScalarType wide = wide_dtype(x.scalar_type());
  Gates gates{.gate = parts[0].to(wide), .up = parts[1].to(wide), .limited_gate = {}, .shifted_up = {}};
  gates.limited_gate = gates.gate;
  gates.shifted_up = gates.up;
  if (activation.limit > 0) {
    gates.limited_gate = gates.gate.clamp_max(activation.limit);
    gates.shifted_up = gates.up.clamp(-activation.limit, activation.limit);
  }
  if (activation.up_offset != 0) gates.shifted_up = gates.shifted_up + activation.up_offset;
  return gates;
}

// At a limit itself the gradient flows, as in clamp.
at::Tensor gradient_of_gates(at::Tensor dgate, at::Tensor dup, const Gates& gates, const ExpertActivation& activation) {
  if (activation.limit > 0) {
    dgate = dgate * gates.gate.le(activation.limit);
    dup = dup * gates.up.abs().le(activation.limit);
  }
  return activation.is_interleaved ? at::stack({dgate, dup}, 2).flatten(1) : at::cat({dgate, dup}, 1);
}

at::Tensor expert_activation(const at::Tensor& x, const at::Tensor& weights, ExpertActivation activation) {
  const at::ScalarType dtype = x.scalar_type(), wide = wide_dtype(dtype);
  at::Tensor y;
  if (activation.is_gated) {
    const Gates gates = gates_of(x, activation);
    y = activate(gates.limited_gate, activation.kind).to(dtype).to(wide) * gates.shifted_up;
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
  const Gates gates = gates_of(x, activation);
  const at::Tensor act = activate(gates.limited_gate, activation.kind).to(dtype).to(wide);
  const at::Tensor dgate = activate_backward(weighted * gates.shifted_up, gates.limited_gate, activation.kind);
  return {gradient_of_gates(dgate, weighted * act, gates, activation).to(dtype), dweights(act * gates.shifted_up)};
}

}  // namespace
}  // namespace reference

constexpr ExpertActivationTable kExpertActivationReference{.forward = reference::expert_activation,
                                                           .backward = reference::expert_activation_backward};

}  // namespace megalith::ops
