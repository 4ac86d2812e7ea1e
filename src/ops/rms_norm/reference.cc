// The definition of rms_norm, in ATen's operators.
#include "ops/rms_norm/reference.h"

#include <ATen/ATen.h>

#include "ops/arguments.h"
#include "ops/library.h"

namespace megalith::ops::reference {
namespace {

// dx before it is rounded, and dweight.
std::tuple<at::Tensor, at::Tensor> wide_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                                                 const at::Tensor& inv_rms) {
  const at::ScalarType wide = wide_dtype(x.scalar_type());
  const at::Tensor scale = inv_rms.unsqueeze(-1);
  const at::Tensor n = x.to(wide) * scale;
  const at::Tensor g = dy.to(wide) * weight.to(wide);
  const at::Tensor dx = (g - n * (g * n).mean(-1, /*keepdim=*/true)) * scale;
  // The forward multiplied the rounded n, so that is what the weight's gradient sees.
  const at::Tensor dweight = (dy.to(wide) * n.to(x.scalar_type()).to(wide)).sum(0);
  return {dx, dweight};
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> rms_norm_forward(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const at::Tensor wide = x.to(wide_dtype(x.scalar_type()));
  const at::Tensor inv_rms = (wide.square().mean(-1) + eps).rsqrt();
  return {(wide * inv_rms.unsqueeze(-1)).to(x.scalar_type()) * weight, inv_rms};
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return std::get<0>(rms_norm_forward(x, weight, eps));
}

std::tuple<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& dy, const at::Tensor& x,
                                                     const at::Tensor& weight, const at::Tensor& inv_rms) {
  auto [dx, dweight] = wide_backward(dy, x, weight, inv_rms);
  return {dx.to(x.scalar_type()), dweight};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> add_rms_norm_forward(const at::Tensor& x, const at::Tensor& residual,
                                                                    const at::Tensor& weight, double eps) {
  const at::Tensor sum = x + residual;
  auto [y, inv_rms] = rms_norm_forward(sum, weight, eps);
  return {y, sum, inv_rms};
}

std::tuple<at::Tensor, at::Tensor> add_rms_norm_backward(const at::Tensor& dy, const at::Tensor& dsum,
                                                         const at::Tensor& sum, const at::Tensor& weight,
                                                         const at::Tensor& inv_rms) {
  auto [dx, dweight] = wide_backward(dy, sum, weight, inv_rms);
  return {(dx + dsum).to(sum.scalar_type()), dweight};
}

}  // namespace megalith::ops::reference

TORCH_LIBRARY_IMPL(megalith, CompositeExplicitAutograd, m) {
  using namespace megalith::ops::reference;
  m.impl("rms_norm", TORCH_FN(rms_norm));
  m.impl("rms_norm_forward", TORCH_FN(rms_norm_forward));
  m.impl("rms_norm_backward", TORCH_FN(rms_norm_backward));
  m.impl("add_rms_norm_forward", TORCH_FN(add_rms_norm_forward));
  m.impl("add_rms_norm_backward", TORCH_FN(add_rms_norm_backward));
}
