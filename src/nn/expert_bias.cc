// The embedding operators pick rows of the biases by expert.
#include "nn/expert_bias.h"

#include <ATen/ATen.h>

#include <optional>

#include "nn/function.h"
#include "ops/arguments.h"
#include "ops/linear/linear.h"

namespace megalith {

struct ExpertBiasFunction : torch::autograd::Function<ExpertBiasFunction> {
  struct Call {
    Parameter* bias;
    int64_t first_column;
    at::Tensor offsets;
    Kernels kernels;

    int64_t num_experts() const { return offsets.size(0) - 1; }
    at::Tensor table() const { return bias->data().view({num_experts(), -1}); }
    // (n) int64: experts; num_experts() for unassigned rows.
    at::Tensor numbers(int64_t num_rows) const {
      const at::Tensor rows = at::arange(num_rows, offsets.options()).unsqueeze(1);
      return rows.ge(offsets.narrow(0, 1, num_experts())).sum(1);
    }
    at::Tensor of_rows(int64_t num_rows) const {
      return ops::embedding_forward(numbers(num_rows), table(), 0, kernels);
    }
  };

  static at::Tensor forward(torch::autograd::AutogradContext* node, const at::Tensor& y, const at::Tensor& /*bias*/,
                            const std::optional<at::Tensor>& weights, Call call) {
    expect_contribution(call.bias);
    at::Tensor result = compute(y, weights.value_or(at::Tensor()), call);
    node->save_for_backward({weights.value_or(at::Tensor())});
    hold(node, std::move(call));
    return result;
  }

  static at::Tensor compute(const at::Tensor& y, const at::Tensor& weights, const Call& call) {
    const at::Tensor added = call.of_rows(y.size(0));
    at::Tensor result = y.clone();
    const at::Tensor columns = result.narrow(1, call.first_column, added.size(1));
    if (weights.defined())
      columns.addcmul_(added, weights.unsqueeze(1).to(y.scalar_type()));
    else
      columns.add_(added);
    return result;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* node,
                                                 const torch::autograd::variable_list& gradients) {
    const Call& call = held<Call>(node);
    const at::Tensor weights = node->get_saved_variables()[0];
    const at::Tensor dy = gradients[0].narrow(1, call.first_column, call.table().size(1));
    at::Tensor dweights;
    if (weights.defined()) dweights = (dy * call.of_rows(dy.size(0))).sum(1, /*keepdim=*/false, weights.scalar_type());
    if (call.bias->is_trainable()) {
      const Parameter::GradTarget target = call.bias->open_grad();
      if (!target.accumulate) target.buffer.zero_();
      const at::Tensor drows = weights.defined() ? dy * weights.unsqueeze(1).to(dy.scalar_type()) : dy;
      ops::embedding_wgrad_(target.buffer.view({call.num_experts(), -1}), call.numbers(dy.size(0)), drows.contiguous(),
                            0, call.kernels);
      call.bias->close_grad();
    }
    return {gradients[0], {}, dweights, {}};
  }
};

at::Tensor with_expert_bias(const at::Tensor& y, Parameter& bias, int64_t first_column, const at::Tensor& weights,
                            const at::Tensor& offsets, Kernels kernels) {
  const ExpertBiasFunction::Call call{&bias, first_column, offsets, kernels};
  if (!is_recording({y, bias.value(), weights})) return ExpertBiasFunction::compute(y, weights, call);
  return ExpertBiasFunction::apply(y, bias.value(), weights.defined() ? std::optional(weights) : std::nullopt, call);
}

}  // namespace megalith
