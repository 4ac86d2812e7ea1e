// Registers swiglu for the CPU and for the meta device.
#include <ATen/ATen.h>

#include "ops/arguments.h"
#include "ops/library.h"
#include "ops/swiglu/kernel.h"

namespace megalith::ops::cpu {
namespace {

at::Tensor empty_product(const at::Tensor& gate_up) {
  return at::empty({gate_up.size(0), gate_up.size(1) / 2}, gate_up.options());
}

at::Tensor swiglu(const at::Tensor& gate_up) {
  at::Tensor y = empty_product(gate_up);
  MEGALITH_CPU_KERNEL(swiglu)
  ({.dtype = to_dtype(gate_up.scalar_type()),
    .rows = y.size(0),
    .columns = y.size(1),
    .gate_up = gate_up.const_data_ptr(),
    .y = y.mutable_data_ptr()});
  return y;
}

at::Tensor swiglu_backward(const at::Tensor& dy, const at::Tensor& gate_up) {
  at::Tensor dgate_up = at::empty_like(gate_up);
  MEGALITH_CPU_KERNEL(swiglu_backward)
  ({.dtype = to_dtype(gate_up.scalar_type()),
    .rows = dy.size(0),
    .columns = dy.size(1),
    .dy = dy.const_data_ptr(),
    .gate_up = gate_up.const_data_ptr(),
    .dgate_up = dgate_up.mutable_data_ptr()});
  return dgate_up;
}

}  // namespace
}  // namespace megalith::ops::cpu

TORCH_LIBRARY_IMPL(megalith, CPU, m) {
  m.impl("swiglu", TORCH_FN(megalith::ops::cpu::swiglu));
  m.impl("swiglu_backward", TORCH_FN(megalith::ops::cpu::swiglu_backward));
}

TORCH_LIBRARY_IMPL(megalith, Meta, m) {
  m.impl("swiglu", TORCH_FN(megalith::ops::cpu::empty_product));
  m.impl("swiglu_backward", [](const at::Tensor&, const at::Tensor& gate_up) { return at::empty_like(gate_up); });
}
