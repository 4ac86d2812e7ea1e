#include "nn/activation.h"

#include <optional>
#include <utility>

#include "nn/function.h"
#include "ops/activation/activation.h"
#include "ops/swiglu/swiglu.h"

namespace megalith {

struct ActivationFunction : torch::autograd::Function<ActivationFunction> {
  using Call = ops::ExpertActivation;

  static at::Tensor forward(torch::autograd::AutogradContext* node, const at::Tensor& x, Call call, const Kept& kept) {
    hold(node, std::pair(call, kept));
    return compute(x, call, Kernels::kFused);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* node,
                                                 const torch::autograd::variable_list& gradients) {
    auto& [call, kept] = held<std::pair<Call, Kept>>(node);
    return {differentiate(gradients[0].contiguous(), kept.take(), call), {}, {}};
  }

  static bool is_of_reference(const Call& call) {
    return call.kind == ops::ActivationKind::kQuickGelu || call.kind == ops::ActivationKind::kRelu;
  }

  static at::Tensor compute(const at::Tensor& x, const Call& call, Kernels kernels) {
    if (call.kind == ops::ActivationKind::kSilu) return ops::swiglu(x, kernels);
    if (is_of_reference(call)) return ops::expert_activation(x, {}, call, kernels);
    return ops::activation(x, call.kind, call.is_gated, kernels);
  }

  static at::Tensor differentiate(const at::Tensor& dy, const at::Tensor& x, const Call& call) {
    if (call.kind == ops::ActivationKind::kSilu) return ops::swiglu_backward(dy, x);
    if (is_of_reference(call)) return std::get<0>(ops::expert_activation_backward(dy, x, {}, call));
    return ops::activation_backward(dy, x, call.kind, call.is_gated);
  }
};

struct ExpertActivationFunction : torch::autograd::Function<ExpertActivationFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* node, const at::Tensor& x,
                            const std::optional<at::Tensor>& weights, ops::ExpertActivation activation) {
    node->save_for_backward({x, weights.value_or(at::Tensor())});
    hold(node, activation);
    return ops::expert_activation(x, weights.value_or(at::Tensor()), activation);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* node,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = node->get_saved_variables();
    auto [dx, dweights] = ops::expert_activation_backward(gradients[0].contiguous(), saved[0], saved[1],
                                                          held<ops::ExpertActivation>(node));
    return {dx, saved[1].defined() ? dweights : at::Tensor(), {}};
  }
};

namespace {

// ATen's autograd records references.
bool needs_node(std::initializer_list<at::Tensor> inputs, Kernels kernels) {
  const bool is_meta = inputs.begin()->is_meta();  // shapes only
  return (kernels == Kernels::kFused || is_meta) && is_recording(inputs);
}

}  // namespace

Activation activated(const Activation& x, ops::ExpertActivation activation, Kernels kernels, bool is_recomputed) {
  if (!is_recording({x.value})) return ActivationFunction::compute(x.value, activation, kernels);
  const Kept kept = x.keep();
  Activation y = needs_node({x.value}, kernels) ? ActivationFunction::apply(x.value, activation, kept)
                                                : ActivationFunction::compute(x.value, activation, kernels);
  if (is_recomputed) {
    y.kept = kept.then([activation, kernels](const at::Tensor& up) {
      return ActivationFunction::compute(up, activation, kernels);
    });
  }
  return y;
}

Activation activated_rows(const at::Tensor& x, const at::Tensor& weights, ops::ExpertActivation activation,
                          Kernels kernels, bool is_recomputed) {
  if (!is_recording({x, weights})) return ops::expert_activation(x, weights, activation, kernels);
  Activation y =
      needs_node({x, weights}, kernels)
          ? ExpertActivationFunction::apply(x, weights.defined() ? std::optional(weights) : std::nullopt, activation)
          : ops::expert_activation(x, weights, activation, kernels);
  if (is_recomputed) {
    y.kept = Kept(x).then([weights = Kept(weights), activation, kernels](const at::Tensor& up) {
      return ops::expert_activation(up, weights.get(), activation, kernels);
    });
  }
  return y;
}

}  // namespace megalith
