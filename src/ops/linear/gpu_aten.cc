// The vendor's products, which read bf16 and fp16 and add weight gradients in fp32 in place: called directly if
// LibTorch's operators do not offer that. Bias and embedding have our kernels.
#include <ATen/ATen.h>
#include <ATen/Context.h>

#include "ops/gpu/blas.h"
#include "ops/linear/linear.h"

namespace megalith::ops {
namespace {

at::Tensor linear_by_vendor(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias) {
  if (gpu::chooses_algorithms()) {
    at::Tensor y = at::empty({x.size(0), w.size(0)}, x.options());
    if (gpu::try_product({.c = y, .a = x, .b = w.t(), .bias = bias})) return y;
  }
  return bias.defined() ? at::addmm(bias, x, w.t()) : at::mm(x, w.t());
}

at::Tensor linear_dgrad_by_vendor(const at::Tensor& dy, const at::Tensor& w) {
  if (gpu::chooses_algorithms()) {
    at::Tensor dx = at::empty({dy.size(0), w.size(1)}, dy.options());
    if (gpu::try_product({.c = dx, .a = dy, .b = w})) return dx;
  }
  return at::mm(dy, w);
}

void linear_wgrad_by_vendor(const at::Tensor& dw, const at::Tensor& dy, const at::Tensor& x, bool accumulate) {
  if (gpu::try_product({.c = dw, .a = dy.t(), .b = x, .accumulate = accumulate})) return;
  at::Tensor sum = dw;
  const double beta = accumulate ? 1 : 0;
  if (dy.scalar_type() == dw.scalar_type()) {
    at::addmm_out(sum, dw, dy.t(), x, beta);
  } else if (dw.is_cuda() && !at::Context::hasROCM()) {
    at::addmm_out(sum, dw, dy.t(), x, dw.scalar_type(), beta);
  } else {
    // Only LibTorch's CUDA operator multiplies 16 bits into fp32.
    kLinearReference.wgrad_(dw, dy, x, accumulate);
  }
}

}  // namespace

constexpr LinearTable kLinearGpuAten{
    .forward = linear_by_vendor, .dgrad = linear_dgrad_by_vendor, .wgrad_ = linear_wgrad_by_vendor};

}  // namespace megalith::ops
