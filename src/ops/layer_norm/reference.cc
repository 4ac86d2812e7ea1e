// The definition of layer_norm, in ATen's operators.
#include "ops/layer_norm/reference.h"

#include <ATen/ATen.h>

#include "ops/arguments.h"
#include "ops/library.h"

namespace megalith::ops::reference {
namespace {

using at::Tensor;

Tensor widened_weight(const Tensor& weight, bool zero_centered) {
  const Tensor wide = weight.to(wide_dtype(weight.scalar_type()));
  return zero_centered ? wide + 1 : wide;
}

// dx before it is rounded, dweight and dbias.
std::tuple<Tensor, Tensor, Tensor> wide_layer_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& weight,
                                                            const Tensor& mean, const Tensor& inv_std,
                                                            bool zero_centered) {
  const at::ScalarType wide = wide_dtype(x.scalar_type());
  const Tensor scale = inv_std.unsqueeze(-1), grad = dy.to(wide);
  const Tensor n = (x.to(wide) - mean.unsqueeze(-1)) * scale;
  const Tensor g = grad * widened_weight(weight, zero_centered);
  const Tensor dx = (g - g.mean(-1, /*keepdim=*/true) - n * (g * n).mean(-1, /*keepdim=*/true)) * scale;
  return {dx, (grad * n).sum(0), grad.sum(0)};
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor> layer_norm_forward(const Tensor& x, const Tensor& weight, const Tensor& bias,
                                                      double eps, bool zero_centered_weight) {
  const Tensor wide = x.to(wide_dtype(x.scalar_type()));
  const Tensor mean = wide.mean(-1);
  const Tensor centered = wide - mean.unsqueeze(-1);
  const Tensor inv_std = (centered.square().mean(-1) + eps).rsqrt();
  const Tensor y = centered * inv_std.unsqueeze(-1) * widened_weight(weight, zero_centered_weight);
  return {(y + bias.to(wide.scalar_type())).to(x.scalar_type()), mean, inv_std};
}

Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps, bool zero_centered_weight) {
  return std::get<0>(layer_norm_forward(x, weight, bias, eps, zero_centered_weight));
}

std::tuple<Tensor, Tensor, Tensor> layer_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& weight,
                                                       const Tensor& mean, const Tensor& inv_std,
                                                       bool zero_centered_weight) {
  auto [dx, dweight, dbias] = wide_layer_norm_backward(dy, x, weight, mean, inv_std, zero_centered_weight);
  return {dx.to(x.scalar_type()), dweight, dbias};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> add_layer_norm_forward(const Tensor& x, const Tensor& residual,
                                                                  const Tensor& weight, const Tensor& bias, double eps,
                                                                  bool zero_centered_weight) {
  const Tensor sum = x + residual;
  auto [y, mean, inv_std] = layer_norm_forward(sum, weight, bias, eps, zero_centered_weight);
  return {y, sum, mean, inv_std};
}

std::tuple<Tensor, Tensor, Tensor> add_layer_norm_backward(const Tensor& dy, const Tensor& dsum, const Tensor& sum,
                                                           const Tensor& weight, const Tensor& mean,
                                                           const Tensor& inv_std, bool zero_centered_weight) {
  auto [dx, dweight, dbias] = wide_layer_norm_backward(dy, sum, weight, mean, inv_std, zero_centered_weight);
  return {(dx + dsum).to(sum.scalar_type()), dweight, dbias};
}

}  // namespace megalith::ops::reference

TORCH_LIBRARY_IMPL(megalith, CompositeExplicitAutograd, m) {
  using namespace megalith::ops::reference;
  m.impl("layer_norm", TORCH_FN(layer_norm));
  m.impl("layer_norm_forward", TORCH_FN(layer_norm_forward));
  m.impl("layer_norm_backward", TORCH_FN(layer_norm_backward));
  m.impl("add_layer_norm_forward", TORCH_FN(add_layer_norm_forward));
  m.impl("add_layer_norm_backward", TORCH_FN(add_layer_norm_backward));
}
