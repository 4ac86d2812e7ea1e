// Registers the GELU operators for the CPU and for the meta device.
#include <ATen/ATen.h>

#include "ops/arguments.h"
#include "ops/gelu/gelu.h"
#include "ops/gelu/kernel.h"
#include "ops/library.h"

namespace megalith::ops::cpu {
namespace {

using at::Tensor;
using OptionalBias = std::optional<Tensor>;

BiasActivation activation_arguments(const Tensor& x, const OptionalBias& bias, const Tensor& y) {
  return {.dtype = to_dtype(x.scalar_type()),
          .rows = x.size(0),
          .columns = x.size(1),
          .x = x.const_data_ptr(),
          .bias = bias ? bias->const_data_ptr() : nullptr,
          .y = y.mutable_data_ptr()};
}

BiasActivationBackward activation_arguments(const Tensor& dy, const Tensor& x, const OptionalBias& bias,
                                            const Tensor& dx) {
  return {.dtype = to_dtype(x.scalar_type()),
          .rows = x.size(0),
          .columns = x.size(1),
          .dy = dy.const_data_ptr(),
          .x = x.const_data_ptr(),
          .bias = bias ? bias->const_data_ptr() : nullptr,
          .dx = dx.mutable_data_ptr()};
}

Tensor empty_gated(const Tensor& gate_up, int64_t) {
  return at::empty({gate_up.size(0), gate_up.size(1) / 2}, gate_up.options());
}

Tensor bias_gelu(const Tensor& x, const OptionalBias& bias, int64_t form) {
  Tensor y = at::empty_like(x);
  MEGALITH_CPU_KERNEL(bias_gelu)(activation_arguments(x, bias, y), to_gelu_form(form));
  return y;
}

Tensor bias_gelu_backward(const Tensor& dy, const Tensor& x, const OptionalBias& bias, int64_t form) {
  Tensor dx = at::empty_like(x);
  MEGALITH_CPU_KERNEL(bias_gelu_backward)(activation_arguments(dy, x, bias, dx), to_gelu_form(form));
  return dx;
}

Tensor geglu(const Tensor& gate_up, int64_t form) {
  Tensor y = empty_gated(gate_up, form);
  MEGALITH_CPU_KERNEL(geglu)
  ({.dtype = to_dtype(gate_up.scalar_type()),
    .rows = y.size(0),
    .columns = y.size(1),
    .gate_up = gate_up.const_data_ptr(),
    .y = y.mutable_data_ptr()},
   to_gelu_form(form));
  return y;
}

Tensor geglu_backward(const Tensor& dy, const Tensor& gate_up, int64_t form) {
  Tensor dgate_up = at::empty_like(gate_up);
  MEGALITH_CPU_KERNEL(geglu_backward)
  ({.dtype = to_dtype(gate_up.scalar_type()),
    .rows = dy.size(0),
    .columns = dy.size(1),
    .dy = dy.const_data_ptr(),
    .gate_up = gate_up.const_data_ptr(),
    .dgate_up = dgate_up.mutable_data_ptr()},
   to_gelu_form(form));
  return dgate_up;
}

Tensor bias_squared_relu(const Tensor& x, const OptionalBias& bias) {
  Tensor y = at::empty_like(x);
  MEGALITH_CPU_KERNEL(bias_squared_relu)(activation_arguments(x, bias, y));
  return y;
}

Tensor bias_squared_relu_backward(const Tensor& dy, const Tensor& x, const OptionalBias& bias) {
  Tensor dx = at::empty_like(x);
  MEGALITH_CPU_KERNEL(bias_squared_relu_backward)(activation_arguments(dy, x, bias, dx));
  return dx;
}

}  // namespace
}  // namespace megalith::ops::cpu

TORCH_LIBRARY_IMPL(megalith, CPU, m) {
  namespace cpu = megalith::ops::cpu;
  m.impl("bias_gelu", TORCH_FN(cpu::bias_gelu));
  m.impl("bias_gelu_backward", TORCH_FN(cpu::bias_gelu_backward));
  m.impl("geglu", TORCH_FN(cpu::geglu));
  m.impl("geglu_backward", TORCH_FN(cpu::geglu_backward));
  m.impl("bias_squared_relu", TORCH_FN(cpu::bias_squared_relu));
  m.impl("bias_squared_relu_backward", TORCH_FN(cpu::bias_squared_relu_backward));
}

TORCH_LIBRARY_IMPL(megalith, Meta, m) {
  using at::Tensor;
  using OptionalBias = std::optional<Tensor>;
  m.impl("bias_gelu", [](const Tensor& x, const OptionalBias&, int64_t) { return at::empty_like(x); });
  m.impl("bias_gelu_backward",
         [](const Tensor&, const Tensor& x, const OptionalBias&, int64_t) { return at::empty_like(x); });
  m.impl("geglu", TORCH_FN(megalith::ops::cpu::empty_gated));
  m.impl("geglu_backward", [](const Tensor&, const Tensor& gate_up, int64_t) { return at::empty_like(gate_up); });
  m.impl("bias_squared_relu", [](const Tensor& x, const OptionalBias&) { return at::empty_like(x); });
  m.impl("bias_squared_relu_backward",
         [](const Tensor&, const Tensor& x, const OptionalBias&) { return at::empty_like(x); });
}
