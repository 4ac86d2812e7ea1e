// In ATen's operators.
#include <ATen/ATen.h>

#include "ops/amax.h"
#include "ops/arguments.h"
#include "ops/rms_norm/rms_norm.h"

namespace megalith::ops {
namespace reference {
namespace {

using at::Tensor;

std::tuple<Tensor, Tensor, Tensor> rms_norm(const Tensor& x, const Tensor& residual, const Tensor& weight, double eps,
                                            const Tensor& amax) {
  const Tensor sum = residual.defined() ? x + residual : Tensor(), normed = sum.defined() ? sum : x;
  const Tensor wide = normed.to(wide_dtype(x.scalar_type()));
  const Tensor inv_rms = (wide.square().mean(-1) + eps).rsqrt();
  const Tensor y = (wide * inv_rms.unsqueeze(-1)).to(x.scalar_type()) * weight;
  raise_amax(amax, y.detach());
  return {y, sum, inv_rms};
}

std::tuple<Tensor, Tensor> rms_norm_backward(const Tensor& dy, const Tensor& dsum, const Tensor& x,
                                             const Tensor& weight, const Tensor& inv_rms) {
  const at::ScalarType wide = wide_dtype(x.scalar_type());
  const Tensor scale = inv_rms.unsqueeze(-1);
  const Tensor n = x.to(wide) * scale;
  const Tensor g = dy.to(wide) * weight.to(wide);
  const Tensor dx = (g - n * (g * n).mean(-1, /*keepdim=*/true)) * scale;
  // forward multiplied the rounded n
  const Tensor dweight = (dy.to(wide) * n.to(x.scalar_type()).to(wide)).sum(0);
  return {(dsum.defined() ? dx + dsum : dx).to(x.scalar_type()), dweight};
}

}  // namespace
}  // namespace reference

constexpr RmsNormTable kRmsNormReference{.forward = reference::rms_norm, .backward = reference::rms_norm_backward};

}  // namespace megalith::ops
