// Interface of expert_activation: checks the arguments, then calls the dispatcher or the reference. Through the
// dispatcher the kind travels as its number.
#include "ops/expert_activation/expert_activation.h"

#include "core/error.h"
#include "ops/arguments.h"
#include "ops/expert_activation/reference.h"
#include "ops/library.h"

TORCH_LIBRARY_FRAGMENT(megalith, m) {
  m.def("expert_activation(Tensor x, Tensor? weights, int kind, bool is_gated) -> Tensor");
  m.def("expert_activation_forward(Tensor x, Tensor? weights, int kind, bool is_gated) -> Tensor");
  m.def(
      "expert_activation_backward(Tensor dy, Tensor x, Tensor? weights, int kind, bool is_gated) -> (Tensor dx, Tensor "
      "dweights)");
}

namespace megalith::ops {
namespace {

using RowWeights = std::optional<at::Tensor>;
RowWeights row_weights(const at::Tensor& t) { return t.defined() ? RowWeights(t) : std::nullopt; }

void check_activation(const char* op, const at::Tensor& x, const at::Tensor& weights, ExpertActivation activation) {
  check_floating(op, {"x", x});
  check_rank(op, {"x", x}, 2);
  check_contiguous(op, {"x", x});
  if (activation.is_gated && x.size(1) % 2 != 0) {
    throw UserError(fmt::format("{}: x has {} columns, but must have an even number: [gate | up]", op, x.size(1)));
  }
  if (!weights.defined()) return;
  check_dtype(op, {"weights", weights}, wide_dtype(x.scalar_type()));
  check_shape(op, {"weights", weights}, {x.size(0)});
  check_contiguous(op, {"weights", weights});
  check_devices(op, {{"x", x}, {"weights", weights}});
}

using Activate = at::Tensor(const at::Tensor&, const RowWeights&, int64_t, bool);

}  // namespace

at::Tensor expert_activation(const at::Tensor& x, const at::Tensor& weights, ExpertActivation activation,
                             Kernels kernels) {
  check_activation("expert_activation", x, weights, activation);
  const auto kind = static_cast<int64_t>(activation.kind);
  if (kernels == Kernels::kReference) {
    return reference::expert_activation(x, row_weights(weights), kind, activation.is_gated);
  }
  static const auto op = find_op<Activate>("megalith::expert_activation");
  return op.call(x, row_weights(weights), kind, activation.is_gated);
}

at::Tensor expert_activation_forward(const at::Tensor& x, const at::Tensor& weights, ExpertActivation activation,
                                     Kernels kernels) {
  check_activation("expert_activation_forward", x, weights, activation);
  const auto kind = static_cast<int64_t>(activation.kind);
  if (kernels == Kernels::kReference) {
    return reference::expert_activation(x, row_weights(weights), kind, activation.is_gated);
  }
  static const auto op = find_op<Activate>("megalith::expert_activation_forward");
  return op.call(x, row_weights(weights), kind, activation.is_gated);
}

std::tuple<at::Tensor, at::Tensor> expert_activation_backward(const at::Tensor& dy, const at::Tensor& x,
                                                              const at::Tensor& weights, ExpertActivation activation,
                                                              Kernels kernels) {
  constexpr const char* kOp = "expert_activation_backward";
  check_activation(kOp, x, weights, activation);
  check_dtype(kOp, {"dy", dy}, x.scalar_type());
  check_shape(kOp, {"dy", dy}, {x.size(0), activation.is_gated ? x.size(1) / 2 : x.size(1)});
  check_contiguous(kOp, {"dy", dy});
  check_devices(kOp, {{"x", x}, {"dy", dy}});
  const auto kind = static_cast<int64_t>(activation.kind);
  if (kernels == Kernels::kReference) {
    return reference::expert_activation_backward(dy, x, row_weights(weights), kind, activation.is_gated);
  }
  static const auto op = find_op<std::tuple<at::Tensor, at::Tensor>(
      const at::Tensor&, const at::Tensor&, const RowWeights&, int64_t, bool)>("megalith::expert_activation_backward");
  return op.call(dy, x, row_weights(weights), kind, activation.is_gated);
}

}  // namespace megalith::ops
