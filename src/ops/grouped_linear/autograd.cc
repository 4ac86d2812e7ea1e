// The gradient of grouped_linear. (In training, nn/ calls the halves and sums the weights' gradient into its buffer.)
#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ops/arguments.h"
#include "ops/grouped_linear/grouped_linear.h"
#include "ops/library.h"

namespace megalith::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct GroupedLinearGradient : torch::autograd::Function<GroupedLinearGradient> {
  static at::Tensor forward(AutogradContext* node, const at::Tensor& x, const at::Tensor& w,
                            const at::Tensor& offsets) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    node->save_for_backward({x, w, offsets});
    return grouped_linear_forward(x, w, offsets);
  }

  static variable_list backward(AutogradContext* node, const variable_list& gradients) {
    const auto saved = node->get_saved_variables();
    const at::Tensor dy = gradients[0].contiguous();
    at::Tensor dx, dw;
    if (node->needs_input_grad(0)) dx = grouped_linear_dgrad(dy, saved[1], saved[2]);
    if (node->needs_input_grad(1)) {
      dw = at::empty(saved[1].sizes(), dy.options().dtype(wide_dtype(dy.scalar_type())));
      grouped_linear_wgrad_(dw, dy, saved[0], saved[2], /*accumulate=*/false);
      dw = dw.to(dy.scalar_type());
    }
    return {dx, dw, at::Tensor()};
  }
};

at::Tensor grouped_linear_autograd(const at::Tensor& x, const at::Tensor& w, const at::Tensor& offsets) {
  return GroupedLinearGradient::apply(x, w, offsets);
}

}  // namespace
}  // namespace megalith::ops

TORCH_LIBRARY_IMPL(megalith, Autograd, m) {
  m.impl("grouped_linear", TORCH_FN(megalith::ops::grouped_linear_autograd));
  m.impl("grouped_linear_forward", megalith::ops::not_differentiable());
  m.impl("grouped_linear_dgrad", megalith::ops::not_differentiable());
  m.impl("grouped_linear_wgrad_", megalith::ops::not_differentiable());
}
