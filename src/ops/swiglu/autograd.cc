// The gradient of swiglu.
#include <torch/csrc/autograd/custom_function.h>

#include "ops/library.h"
#include "ops/swiglu/swiglu.h"

namespace megalith::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Swiglu : torch::autograd::Function<Swiglu> {
  static at::Tensor forward(AutogradContext* node, const at::Tensor& gate_up) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    node->save_for_backward({gate_up});
    return swiglu(gate_up);
  }

  static variable_list backward(AutogradContext* node, const variable_list& gradients) {
    return {swiglu_backward(gradients[0].contiguous(), node->get_saved_variables()[0])};
  }
};

at::Tensor swiglu_autograd(const at::Tensor& gate_up) { return Swiglu::apply(gate_up); }

}  // namespace
}  // namespace megalith::ops

TORCH_LIBRARY_IMPL(megalith, Autograd, m) {
  m.impl("swiglu", TORCH_FN(megalith::ops::swiglu_autograd));
  m.impl("swiglu_backward", megalith::ops::not_differentiable());
}
