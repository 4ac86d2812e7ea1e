// The gradient of layer_norm.
#include <torch/csrc/autograd/custom_function.h>

#include "ops/layer_norm/layer_norm.h"
#include "ops/library.h"

namespace megalith::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct LayerNorm : torch::autograd::Function<LayerNorm> {
  static at::Tensor forward(AutogradContext* node, const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& bias, double eps, bool zero_centered_weight) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    auto [y, mean, inv_std] = layer_norm_forward(x, weight, bias, eps, zero_centered_weight);
    node->save_for_backward({x, weight, mean, inv_std});
    node->saved_data["zero_centered_weight"] = zero_centered_weight;
    return y;
  }

  static variable_list backward(AutogradContext* node, const variable_list& gradients) {
    const auto saved = node->get_saved_variables();
    auto [dx, dweight, dbias] = layer_norm_backward(gradients[0].contiguous(), saved[0], saved[1], saved[2], saved[3],
                                                    node->saved_data["zero_centered_weight"].toBool());
    const at::ScalarType dtype = saved[1].scalar_type();
    return {dx, dweight.to(dtype), dbias.to(dtype), {}, {}};
  }
};

at::Tensor layer_norm_autograd(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps,
                               bool zero_centered_weight) {
  return LayerNorm::apply(x, weight, bias, eps, zero_centered_weight);
}

}  // namespace
}  // namespace megalith::ops

TORCH_LIBRARY_IMPL(megalith, Autograd, m) {
  m.impl("layer_norm", TORCH_FN(megalith::ops::layer_norm_autograd));
  m.impl("layer_norm_forward", megalith::ops::not_differentiable());
  m.impl("layer_norm_backward", megalith::ops::not_differentiable());
  m.impl("add_layer_norm_forward", megalith::ops::not_differentiable());
  m.impl("add_layer_norm_backward", megalith::ops::not_differentiable());
}
