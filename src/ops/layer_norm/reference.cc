// In ATen's operators.
#include <ATen/ATen.h>

#include "ops/amax.h"
#include "ops/arguments.h"
#include "ops/layer_norm/layer_norm.h"

namespace megalith::ops {
namespace reference {
namespace {

using at::Tensor;

Tensor widened_weight(const Tensor& weight, bool zero_centered) {
  const Tensor wide = weight.to(wide_dtype(weight.scalar_type()));
  return zero_centered ? wide + 1 : wide;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> layer_norm(const Tensor& x, const Tensor& residual, const Tensor& weight,
                                                      const Tensor& bias, double eps, bool zero_centered,
                                                      const Tensor& amax) {
  const Tensor sum = residual.defined() ? x + residual : Tensor(), normed = sum.defined() ? sum : x;
  const Tensor wide = normed.to(wide_dtype(x.scalar_type()));
  const Tensor mean = wide.mean(-1);
  const Tensor centered = wide - mean.unsqueeze(-1);
  const Tensor inv_std = (centered.square().mean(-1) + eps).rsqrt();
  const Tensor scaled = centered * inv_std.unsqueeze(-1) * widened_weight(weight, zero_centered);
  const Tensor y = (scaled + bias.to(wide.scalar_type())).to(x.scalar_type());
  raise_amax(amax, y.detach());
  return {y, sum, mean, inv_std};
}

std::tuple<Tensor, Tensor, Tensor> layer_norm_backward(const Tensor& dy, const Tensor& dsum, const Tensor& x,
                                                       const Tensor& weight, const Tensor& mean, const Tensor& inv_std,
                                                       bool zero_centered) {
  const at::ScalarType wide = wide_dtype(x.scalar_type());
  const Tensor scale = inv_std.unsqueeze(-1), grad = dy.to(wide);
  const Tensor n = (x.to(wide) - mean.unsqueeze(-1)) * scale;
  const Tensor g = grad * widened_weight(weight, zero_centered);
  const Tensor dx = (g - g.mean(-1, /*keepdim=*/true) - n * (g * n).mean(-1, /*keepdim=*/true)) * scale;
  return {(dsum.defined() ? dx + dsum : dx).to(x.scalar_type()), (grad * n).sum(0), grad.sum(0)};
}

}  // namespace
}  // namespace reference

constexpr LayerNormTable kLayerNormReference{.forward = reference::layer_norm,
                                             .backward = reference::layer_norm_backward};

}  // namespace megalith::ops
