// The gradient of expert_activation.
#include <torch/csrc/autograd/custom_function.h>

#include "ops/expert_activation/expert_activation.h"
#include "ops/library.h"

namespace megalith::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct ExpertActivationGradient : torch::autograd::Function<ExpertActivationGradient> {
  static at::Tensor forward(AutogradContext* node, const at::Tensor& x, const std::optional<at::Tensor>& weights,
                            int64_t kind, bool is_gated) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    node->save_for_backward({x, weights.value_or(at::Tensor())});
    node->saved_data["kind"] = kind;
    node->saved_data["is_gated"] = is_gated;
    return expert_activation_forward(x, weights.value_or(at::Tensor()), {static_cast<ActivationKind>(kind), is_gated});
  }

  static variable_list backward(AutogradContext* node, const variable_list& gradients) {
    const auto saved = node->get_saved_variables();
    const ExpertActivation activation{static_cast<ActivationKind>(node->saved_data["kind"].toInt()),
                                      node->saved_data["is_gated"].toBool()};
    auto [dx, dweights] = expert_activation_backward(gradients[0].contiguous(), saved[0], saved[1], activation);
    return {dx, saved[1].defined() ? dweights : at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

at::Tensor expert_activation_autograd(const at::Tensor& x, const std::optional<at::Tensor>& weights, int64_t kind,
                                      bool is_gated) {
  return ExpertActivationGradient::apply(x, weights, kind, is_gated);
}

}  // namespace
}  // namespace megalith::ops

TORCH_LIBRARY_IMPL(megalith, Autograd, m) {
  m.impl("expert_activation", TORCH_FN(megalith::ops::expert_activation_autograd));
  m.impl("expert_activation_forward", megalith::ops::not_differentiable());
  m.impl("expert_activation_backward", megalith::ops::not_differentiable());
}
