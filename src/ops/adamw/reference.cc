// The definition of adamw_, in ATen's operators.
#include "ops/adamw/reference.h"

#include <ATen/ATen.h>

#include <cmath>

#include "ops/library.h"

namespace megalith::ops::reference {

void adamw_(at::TensorList model, at::TensorList master, at::TensorList grad, at::TensorList exp_avg,
            at::TensorList exp_avg_sq, at::ArrayRef<double> lr, at::ArrayRef<double> weight_decay,
            const at::Tensor& grad_scale, double beta1, double beta2, double eps, int64_t step) {
  at::NoGradGuard no_grad;
  const double correction1 = 1 - std::pow(beta1, step), correction2 = 1 - std::pow(beta2, step);
  for (size_t i = 0; i < master.size(); ++i) {
    const at::ScalarType wide = master[i].scalar_type();
    const at::Tensor g = grad[i] * grad_scale.to(wide);
    const at::Tensor m = at::lerp(exp_avg[i].to(wide), g, 1 - beta1);
    const at::Tensor v = exp_avg_sq[i].to(wide) * beta2 + g.square() * (1 - beta2);
    const at::Tensor denominator = v.sqrt() / std::sqrt(correction2) + eps;
    master[i].mul_(1 - lr[i] * weight_decay[i]).addcdiv_(m, denominator, -lr[i] / correction1);
    exp_avg[i].copy_(m);
    exp_avg_sq[i].copy_(v);
    if (!model[i].is_same(master[i])) model[i].copy_(master[i].view_as(model[i]));
  }
}

}  // namespace megalith::ops::reference

TORCH_LIBRARY_IMPL(megalith, CompositeExplicitAutograd, m) {
  m.impl("adamw_", TORCH_FN(megalith::ops::reference::adamw_));
}
