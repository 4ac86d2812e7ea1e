// The gradient of rotary: turned back by the same angles, so nothing of x is kept.
#include <torch/csrc/autograd/custom_function.h>

#include "ops/library.h"
#include "ops/rotary/rotary.h"

namespace megalith::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Rotary : torch::autograd::Function<Rotary> {
  static at::Tensor forward(AutogradContext* node, const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                            bool is_interleaved) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    node->save_for_backward({cos, sin});
    node->saved_data["is_interleaved"] = is_interleaved;
    return rotary(x, cos, sin, is_interleaved);
  }

  static variable_list backward(AutogradContext* node, const variable_list& gradients) {
    const auto saved = node->get_saved_variables();
    const at::Tensor& dy = gradients[0];
    return {rotary_backward(dy.stride(-1) == 1 ? dy : dy.contiguous(), saved[0], saved[1],
                            node->saved_data["is_interleaved"].toBool()),
            {},
            {},
            {}};
  }
};

at::Tensor rotary_autograd(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool is_interleaved) {
  return Rotary::apply(x, cos, sin, is_interleaved);
}

}  // namespace
}  // namespace megalith::ops

TORCH_LIBRARY_IMPL(megalith, Autograd, m) {
  m.impl("rotary", TORCH_FN(megalith::ops::rotary_autograd));
  m.impl("rotary_backward", megalith::ops::not_differentiable());
}
