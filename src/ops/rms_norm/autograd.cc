// The gradient of rms_norm.
#include <torch/csrc/autograd/custom_function.h>

#include "ops/library.h"
#include "ops/rms_norm/rms_norm.h"

namespace megalith::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct RmsNorm : torch::autograd::Function<RmsNorm> {
  static at::Tensor forward(AutogradContext* node, const at::Tensor& x, const at::Tensor& weight, double eps) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    auto [y, inv_rms] = rms_norm_forward(x, weight, eps);
    node->save_for_backward({x, weight, inv_rms});
    return y;
  }

  static variable_list backward(AutogradContext* node, const variable_list& gradients) {
    const auto saved = node->get_saved_variables();
    auto [dx, dweight] = rms_norm_backward(gradients[0].contiguous(), saved[0], saved[1], saved[2]);
    return {dx, dweight.to(saved[1].scalar_type()), {}};
  }
};

at::Tensor rms_norm_autograd(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return RmsNorm::apply(x, weight, eps);
}

}  // namespace
}  // namespace megalith::ops

TORCH_LIBRARY_IMPL(megalith, Autograd, m) {
  m.impl("rms_norm", TORCH_FN(megalith::ops::rms_norm_autograd));
  m.impl("rms_norm_forward", megalith::ops::not_differentiable());
  m.impl("rms_norm_backward", megalith::ops::not_differentiable());
  m.impl("add_rms_norm_forward", megalith::ops::not_differentiable());
  m.impl("add_rms_norm_backward", megalith::ops::not_differentiable());
}
