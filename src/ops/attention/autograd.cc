// The gradient of attention, in q, k, v and the mask's bias.
#include <torch/csrc/autograd/custom_function.h>

#include "ops/attention/attention.h"
#include "ops/attention/schema.h"
#include "ops/library.h"

namespace megalith::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// What backward needs besides the saved tensors. The mask's tensors are no variables of the graph (its bias is saved
// apart), so keeping them here makes no cycle.
struct Settings : torch::CustomClassHolder {
  double scale;
  AttentionMask mask;
  AttentionDropout dropout;
};

struct Attention : torch::autograd::Function<Attention> {
  static at::Tensor forward(AutogradContext* node, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const std::optional<at::Tensor>& bias, double scale, const AttentionMask& mask,
                            const AttentionDropout& dropout) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    auto [out, lse] = attention_forward(q, k, v, scale, mask, dropout);
    node->save_for_backward({q, k, v, mask.bias, out, lse});
    auto settings = c10::make_intrusive<Settings>();
    settings->scale = scale;
    settings->mask = mask;
    settings->mask.bias = at::Tensor();
    settings->dropout = dropout;
    node->saved_data["settings"] = at::IValue::make_capsule(std::move(settings));
    return out;
  }

  static variable_list backward(AutogradContext* node, const variable_list& gradients) {
    const auto saved = node->get_saved_variables();
    const auto& settings = *static_cast<Settings*>(node->saved_data.at("settings").toCapsule().get());
    AttentionMask mask = settings.mask;
    mask.bias = saved[3];
    const bool with_dbias = mask.bias.defined() && node->needs_input_grad(3);
    AttentionGradients d = attention_backward(gradients[0].contiguous(), saved[0], saved[1], saved[2], saved[4],
                                              saved[5], settings.scale, mask, settings.dropout, with_dbias);
    if (d.dbias.defined()) d.dbias = d.dbias.to(mask.bias.scalar_type());
    return {d.dq, d.dk, d.dv, d.dbias, {}, {}, {}};
  }
};

at::Tensor attention_autograd(const AttentionMask& mask, const AttentionDropout& dropout, const at::Tensor& q,
                              const at::Tensor& k, const at::Tensor& v, double scale) {
  const auto bias = mask.bias.defined() ? std::optional(mask.bias) : std::nullopt;
  return Attention::apply(q, k, v, bias, scale, mask, dropout);
}

}  // namespace
}  // namespace megalith::ops

TORCH_LIBRARY_IMPL(megalith, Autograd, m) {
  m.impl("attention", TORCH_FN(megalith::ops::kFlat<&megalith::ops::attention_autograd>));
  m.impl("attention_forward", megalith::ops::not_differentiable());
  m.impl("attention_backward", megalith::ops::not_differentiable());
}
