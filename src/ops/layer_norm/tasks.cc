// Registers layer_norm for the CPU and for the meta device.
#include "ops/layer_norm/adapter.h"
#include "ops/layer_norm/cpu_kernel.h"
#include "ops/library.h"

namespace megalith::ops::cpu {
namespace {

void run_layer_norm(const LayerNormForward& a, const at::Tensor&) { MEGALITH_CPU_KERNEL(layer_norm_forward)(a); }
void run_layer_norm_backward(const LayerNormBackward& a, const at::Tensor&) {
  MEGALITH_CPU_KERNEL(layer_norm_backward)(a);
}

}  // namespace
}  // namespace megalith::ops::cpu

TORCH_LIBRARY_IMPL(megalith, CPU, m) {
  using namespace megalith::ops;
  LayerNormAdapter<cpu::run_layer_norm, cpu::run_layer_norm_backward>::register_in(m);
}

TORCH_LIBRARY_IMPL(megalith, Meta, m) {
  using at::Tensor;
  using namespace megalith::ops;
  m.impl("layer_norm", [](const Tensor& x, const Tensor&, const Tensor&, double, bool) { return at::empty_like(x); });
  m.impl("layer_norm_forward", [](const Tensor& x, const Tensor&, const Tensor&, double, bool) {
    return std::tuple(at::empty_like(x), empty_row_statistic(x), empty_row_statistic(x));
  });
  m.impl("layer_norm_backward", [](const Tensor&, const Tensor& x, const Tensor&, const Tensor&, const Tensor&, bool) {
    return std::tuple(at::empty_like(x), empty_column_grad(x), empty_column_grad(x));
  });
  m.impl("add_layer_norm_forward", [](const Tensor& x, const Tensor&, const Tensor&, const Tensor&, double, bool) {
    return std::tuple(at::empty_like(x), at::empty_like(x), empty_row_statistic(x), empty_row_statistic(x));
  });
  m.impl("add_layer_norm_backward",
         [](const Tensor&, const Tensor&, const Tensor& sum, const Tensor&, const Tensor&, const Tensor&, bool) {
           return std::tuple(at::empty_like(sum), empty_column_grad(sum), empty_column_grad(sum));
         });
}
