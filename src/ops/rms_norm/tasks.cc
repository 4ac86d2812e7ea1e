// Registers rms_norm for the CPU and for the meta device.
#include "ops/library.h"
#include "ops/rms_norm/adapter.h"
#include "ops/rms_norm/cpu_kernel.h"

namespace megalith::ops::cpu {
namespace {

void forward(const RmsNormForward& a, const at::Tensor&) { MEGALITH_CPU_KERNEL(rms_norm_forward)(a); }
void backward(const RmsNormBackward& a, const at::Tensor&) { MEGALITH_CPU_KERNEL(rms_norm_backward)(a); }

}  // namespace
}  // namespace megalith::ops::cpu

TORCH_LIBRARY_IMPL(megalith, CPU, m) {
  using namespace megalith::ops;
  RmsNormAdapter<cpu::forward, cpu::backward>::register_in(m);
}

TORCH_LIBRARY_IMPL(megalith, Meta, m) {
  using at::Tensor;
  using namespace megalith::ops;
  m.impl("rms_norm", [](const Tensor& x, const Tensor&, double) { return at::empty_like(x); });
  m.impl("rms_norm_forward",
         [](const Tensor& x, const Tensor&, double) { return std::tuple(at::empty_like(x), empty_inv_rms(x)); });
  m.impl("rms_norm_backward", [](const Tensor&, const Tensor& x, const Tensor& weight, const Tensor&) {
    return std::tuple(at::empty_like(x), empty_weight_grad(weight));
  });
  m.impl("add_rms_norm_forward", [](const Tensor& x, const Tensor&, const Tensor&, double) {
    return std::tuple(at::empty_like(x), at::empty_like(x), empty_inv_rms(x));
  });
  m.impl("add_rms_norm_backward",
         [](const Tensor&, const Tensor&, const Tensor& sum, const Tensor& weight, const Tensor&) {
           return std::tuple(at::empty_like(sum), empty_weight_grad(weight));
         });
}
