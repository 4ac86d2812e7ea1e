// Registers expert_activation for the CPU and for the meta device.
#include <ATen/ATen.h>

#include "ops/arguments.h"
#include "ops/expert_activation/kernel.h"
#include "ops/library.h"

namespace megalith::ops::cpu {
namespace {

using RowWeights = std::optional<at::Tensor>;

at::Tensor empty_activation(const at::Tensor& x, const RowWeights&, int64_t, bool is_gated) {
  return at::empty({x.size(0), is_gated ? x.size(1) / 2 : x.size(1)}, x.options());
}

std::tuple<at::Tensor, at::Tensor> empty_gradients(const at::Tensor&, const at::Tensor& x, const RowWeights& weights,
                                                   int64_t, bool) {
  const auto wide = x.options().dtype(wide_dtype(x.scalar_type()));
  return {at::empty_like(x), at::empty({weights.has_value() ? x.size(0) : 0}, wide)};
}

at::Tensor expert_activation(const at::Tensor& x, const RowWeights& weights, int64_t kind, bool is_gated) {
  at::Tensor y = empty_activation(x, weights, kind, is_gated);
  MEGALITH_CPU_KERNEL(expert_activation)
  ({.dtype = to_dtype(x.scalar_type()),
    .kind = static_cast<ActivationKind>(kind),
    .is_gated = is_gated,
    .rows = y.size(0),
    .columns = y.size(1),
    .x = x.const_data_ptr(),
    .weights = weights.has_value() ? weights->const_data_ptr() : nullptr,
    .y = y.mutable_data_ptr()});
  return y;
}

std::tuple<at::Tensor, at::Tensor> expert_activation_backward(const at::Tensor& dy, const at::Tensor& x,
                                                              const RowWeights& weights, int64_t kind, bool is_gated) {
  auto [dx, dweights] = empty_gradients(dy, x, weights, kind, is_gated);
  MEGALITH_CPU_KERNEL(expert_activation_backward)
  ({.dtype = to_dtype(x.scalar_type()),
    .kind = static_cast<ActivationKind>(kind),
    .is_gated = is_gated,
    .rows = dy.size(0),
    .columns = dy.size(1),
    .x = x.const_data_ptr(),
    .weights = weights.has_value() ? weights->const_data_ptr() : nullptr,
    .dy = dy.const_data_ptr(),
    .dx = dx.mutable_data_ptr(),
    .dweights = weights.has_value() ? dweights.mutable_data_ptr() : nullptr});
  return {dx, dweights};
}

}  // namespace
}  // namespace megalith::ops::cpu

TORCH_LIBRARY_IMPL(megalith, CPU, m) {
  namespace cpu = megalith::ops::cpu;
  m.impl("expert_activation", TORCH_FN(cpu::expert_activation));
  m.impl("expert_activation_forward", TORCH_FN(cpu::expert_activation));
  m.impl("expert_activation_backward", TORCH_FN(cpu::expert_activation_backward));
}

TORCH_LIBRARY_IMPL(megalith, Meta, m) {
  namespace cpu = megalith::ops::cpu;
  m.impl("expert_activation", TORCH_FN(cpu::empty_activation));
  m.impl("expert_activation_forward", TORCH_FN(cpu::empty_activation));
  m.impl("expert_activation_backward", TORCH_FN(cpu::empty_gradients));
}
