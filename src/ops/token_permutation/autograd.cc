// The gradients of permute_tokens and combine_tokens: each one's is the other.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ops/library.h"
#include "ops/token_permutation/token_permutation.h"

namespace megalith::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct PermuteTokens : torch::autograd::Function<PermuteTokens> {
  static at::Tensor forward(AutogradContext* node, const at::Tensor& x, const at::Tensor& source,
                            const at::Tensor& slots) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    node->save_for_backward({slots});
    return permute_tokens_forward(x, source);
  }

  static variable_list backward(AutogradContext* node, const variable_list& gradients) {
    const auto saved = node->get_saved_variables();
    return {combine_tokens_forward(gradients[0].contiguous(), saved[0]), at::Tensor(), at::Tensor()};
  }
};

struct CombineTokens : torch::autograd::Function<CombineTokens> {
  static at::Tensor forward(AutogradContext* node, const at::Tensor& y, const at::Tensor& source,
                            const at::Tensor& slots, const std::optional<at::Tensor>& weights) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    if (weights.has_value())
      node->save_for_backward({source, y, slots, *weights});
    else
      node->save_for_backward({source});
    return combine_tokens_forward(y, slots, weights.value_or(at::Tensor()));
  }

  static variable_list backward(AutogradContext* node, const variable_list& gradients) {
    const auto saved = node->get_saved_variables();
    const at::Tensor dout = gradients[0].contiguous();
    if (saved.size() == 1) return {permute_tokens_forward(dout, saved[0]), at::Tensor(), at::Tensor(), at::Tensor()};
    auto [dy, dweights] = combine_tokens_backward(dout, saved[1], saved[0], saved[2], saved[3]);
    return {dy, at::Tensor(), at::Tensor(), dweights};
  }
};

at::Tensor permute_tokens_autograd(const at::Tensor& x, const at::Tensor& source, const at::Tensor& slots) {
  return PermuteTokens::apply(x, source, slots);
}

at::Tensor combine_tokens_autograd(const at::Tensor& y, const at::Tensor& source, const at::Tensor& slots,
                                   const std::optional<at::Tensor>& weights) {
  return CombineTokens::apply(y, source, slots, weights);
}

}  // namespace
}  // namespace megalith::ops

TORCH_LIBRARY_IMPL(megalith, Autograd, m) {
  m.impl("sort_by_expert", megalith::ops::not_differentiable());
  m.impl("permute_tokens", TORCH_FN(megalith::ops::permute_tokens_autograd));
  m.impl("permute_tokens_forward", megalith::ops::not_differentiable());
  m.impl("combine_tokens", TORCH_FN(megalith::ops::combine_tokens_autograd));
  m.impl("combine_tokens_forward", megalith::ops::not_differentiable());
  m.impl("combine_tokens_backward", megalith::ops::not_differentiable());
}
