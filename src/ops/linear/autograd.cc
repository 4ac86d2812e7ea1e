// The gradient of linear. (In training, nn/ calls the halves and sums the weight's gradient into its buffer instead.)
#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ops/arguments.h"
#include "ops/library.h"
#include "ops/linear/linear.h"

namespace megalith::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct LinearGradient : torch::autograd::Function<LinearGradient> {
  static at::Tensor forward(AutogradContext* node, const at::Tensor& x, const at::Tensor& w,
                            const std::optional<at::Tensor>& bias) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    node->save_for_backward({x, w});
    node->saved_data["has_bias"] = bias.has_value();
    return linear_forward(x, w, bias.value_or(at::Tensor()));
  }

  static variable_list backward(AutogradContext* node, const variable_list& gradients) {
    const auto saved = node->get_saved_variables();
    const at::Tensor dy = gradients[0].contiguous();
    const auto wide = dy.options().dtype(wide_dtype(dy.scalar_type()));
    at::Tensor dx, dw, db;
    if (node->needs_input_grad(0)) dx = linear_dgrad(dy, saved[1]);
    if (node->needs_input_grad(1)) {
      dw = at::empty(saved[1].sizes(), wide);
      linear_wgrad_(dw, dy, saved[0], /*accumulate=*/false);
      dw = dw.to(dy.scalar_type());
    }
    if (node->saved_data["has_bias"].toBool() && node->needs_input_grad(2)) {
      db = at::zeros({dy.size(1)}, wide);
      bias_grad_(db, dy);
      db = db.to(dy.scalar_type());
    }
    return {dx, dw, db};
  }
};

at::Tensor linear_autograd(const at::Tensor& x, const at::Tensor& w, const std::optional<at::Tensor>& bias) {
  return LinearGradient::apply(x, w, bias);
}

}  // namespace
}  // namespace megalith::ops

TORCH_LIBRARY_IMPL(megalith, Autograd, m) {
  m.impl("linear", TORCH_FN(megalith::ops::linear_autograd));
  m.impl("linear_forward", megalith::ops::not_differentiable());
  m.impl("linear_dgrad", megalith::ops::not_differentiable());
  m.impl("linear_wgrad_", megalith::ops::not_differentiable());
  m.impl("bias_grad_", megalith::ops::not_differentiable());
  m.impl("embedding_forward", megalith::ops::not_differentiable());
  m.impl("embedding_wgrad_", megalith::ops::not_differentiable());
}
