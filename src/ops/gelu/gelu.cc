// Interface of the GELU operators: checks the arguments, then calls the dispatcher or the reference.
#include "ops/gelu/gelu.h"

#include "core/error.h"
#include "ops/arguments.h"
#include "ops/gelu/reference.h"
#include "ops/library.h"

TORCH_LIBRARY_FRAGMENT(megalith, m) {
  m.def("bias_gelu(Tensor x, Tensor? bias, int form) -> Tensor");
  m.def("bias_gelu_backward(Tensor dy, Tensor x, Tensor? bias, int form) -> Tensor");
  m.def("geglu(Tensor gate_up, int form) -> Tensor");
  m.def("geglu_backward(Tensor dy, Tensor gate_up, int form) -> Tensor");
  m.def("bias_squared_relu(Tensor x, Tensor? bias) -> Tensor");
  m.def("bias_squared_relu_backward(Tensor dy, Tensor x, Tensor? bias) -> Tensor");
}

namespace megalith::ops {
namespace {

using OptionalBias = std::optional<at::Tensor>;
OptionalBias optional_bias(const at::Tensor& bias) { return bias.defined() ? OptionalBias(bias) : std::nullopt; }

void check_activation(const char* op, const at::Tensor& x, const at::Tensor& bias) {
  check_floating(op, {"x", x});
  check_rank(op, {"x", x}, 2);
  check_contiguous(op, {"x", x});
  if (!bias.defined()) return;
  check_shape(op, {"bias", bias}, {x.size(1)});
  check_dtype(op, {"bias", bias}, x.scalar_type());
  check_contiguous(op, {"bias", bias});
  check_devices(op, {{"x", x}, {"bias", bias}});
}

void check_activation_grad(const char* op, const at::Tensor& dy, const Argument& x, int64_t columns) {
  check_shape(op, {"dy", dy}, {x.tensor.size(0), columns});
  check_dtype(op, {"dy", dy}, x.tensor.scalar_type());
  check_contiguous(op, {"dy", dy});
  check_devices(op, {x, {"dy", dy}});
}

void check_gelu_gate_up(const char* op, const at::Tensor& gate_up) {
  check_floating(op, {"gate_up", gate_up});
  check_rank(op, {"gate_up", gate_up}, 2);
  check_contiguous(op, {"gate_up", gate_up});
  if (gate_up.size(1) % 2 == 0) return;
  throw UserError(
      fmt::format("{}: gate_up has {} columns, but must have an even number: [gate | up]", op, gate_up.size(1)));
}

}  // namespace

GeluForm to_gelu_form(int64_t form) {
  if (form >= 0 && form <= static_cast<int64_t>(GeluForm::kQuick)) return static_cast<GeluForm>(form);
  throw UserError(fmt::format("gelu: form is {}, but must be 0 (tanh), 1 (erf) or 2 (quick)", form));
}

at::Tensor bias_gelu(const at::Tensor& x, const at::Tensor& bias, GeluForm form, Kernels kernels) {
  check_activation("bias_gelu", x, bias);
  if (kernels == Kernels::kReference) return reference::bias_gelu(x, optional_bias(bias), static_cast<int64_t>(form));
  static const auto op = find_op<at::Tensor(const at::Tensor&, const OptionalBias&, int64_t)>("megalith::bias_gelu");
  return op.call(x, optional_bias(bias), static_cast<int64_t>(form));
}

at::Tensor bias_gelu_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& bias, GeluForm form,
                              Kernels kernels) {
  check_activation("bias_gelu_backward", x, bias);
  check_activation_grad("bias_gelu_backward", dy, {"x", x}, x.size(1));
  if (kernels == Kernels::kReference) {
    return reference::bias_gelu_backward(dy, x, optional_bias(bias), static_cast<int64_t>(form));
  }
  static const auto op = find_op<at::Tensor(const at::Tensor&, const at::Tensor&, const OptionalBias&, int64_t)>(
      "megalith::bias_gelu_backward");
  return op.call(dy, x, optional_bias(bias), static_cast<int64_t>(form));
}

at::Tensor geglu(const at::Tensor& gate_up, GeluForm form, Kernels kernels) {
  check_gelu_gate_up("geglu", gate_up);
  if (kernels == Kernels::kReference) return reference::geglu(gate_up, static_cast<int64_t>(form));
  static const auto op = find_op<at::Tensor(const at::Tensor&, int64_t)>("megalith::geglu");
  return op.call(gate_up, static_cast<int64_t>(form));
}

at::Tensor geglu_backward(const at::Tensor& dy, const at::Tensor& gate_up, GeluForm form, Kernels kernels) {
  check_gelu_gate_up("geglu_backward", gate_up);
  check_activation_grad("geglu_backward", dy, {"gate_up", gate_up}, gate_up.size(1) / 2);
  if (kernels == Kernels::kReference) return reference::geglu_backward(dy, gate_up, static_cast<int64_t>(form));
  static const auto op = find_op<at::Tensor(const at::Tensor&, const at::Tensor&, int64_t)>("megalith::geglu_backward");
  return op.call(dy, gate_up, static_cast<int64_t>(form));
}

at::Tensor bias_squared_relu(const at::Tensor& x, const at::Tensor& bias, Kernels kernels) {
  check_activation("bias_squared_relu", x, bias);
  if (kernels == Kernels::kReference) return reference::bias_squared_relu(x, optional_bias(bias));
  static const auto op = find_op<at::Tensor(const at::Tensor&, const OptionalBias&)>("megalith::bias_squared_relu");
  return op.call(x, optional_bias(bias));
}

at::Tensor bias_squared_relu_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& bias,
                                      Kernels kernels) {
  check_activation("bias_squared_relu_backward", x, bias);
  check_activation_grad("bias_squared_relu_backward", dy, {"x", x}, x.size(1));
  if (kernels == Kernels::kReference) return reference::bias_squared_relu_backward(dy, x, optional_bias(bias));
  static const auto op = find_op<at::Tensor(const at::Tensor&, const at::Tensor&, const OptionalBias&)>(
      "megalith::bias_squared_relu_backward");
  return op.call(dy, x, optional_bias(bias));
}

}  // namespace megalith::ops
