// LibTorch's products on a GPU, which read bf16 and fp16 as they are and add a weight gradient in fp32 where it lies.
// Bias and embedding have no call that is better than the reference.
#include <ATen/ATen.h>
#include <ATen/Context.h>

#include "ops/linear/linear.h"

namespace megalith::ops {
namespace {

at::Tensor linear_by_aten(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias) {
  return bias.defined() ? at::addmm(bias, x, w.t()) : at::mm(x, w.t());
}

at::Tensor linear_dgrad_by_aten(const at::Tensor& dy, const at::Tensor& w) { return at::mm(dy, w); }

void linear_wgrad_by_aten(const at::Tensor& dw, const at::Tensor& dy, const at::Tensor& x, bool accumulate) {
  at::Tensor sum = dw;
  const double beta = accumulate ? 1 : 0;
  if (dy.scalar_type() == dw.scalar_type()) {
    at::addmm_out(sum, dw, dy.t(), x, beta);
  } else if (dw.is_cuda() && !at::Context::hasROCM()) {
    at::addmm_out(sum, dw, dy.t(), x, dw.scalar_type(), beta);
  } else {
    // Only CUDA multiplies 16-bit numbers into fp32.
    kLinearReference.wgrad_(dw, dy, x, accumulate);
  }
}

}  // namespace

constexpr LinearTable kLinearGpuAten{
    .forward = linear_by_aten, .dgrad = linear_dgrad_by_aten, .wgrad_ = linear_wgrad_by_aten};

}  // namespace megalith::ops
