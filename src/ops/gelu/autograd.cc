// The gradients of the GELU operators. (In training, nn/ calls the halves and sums the bias's gradient into its
// buffer.)
#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ops/arguments.h"
#include "ops/gelu/gelu.h"
#include "ops/library.h"
#include "ops/linear/linear.h"

namespace megalith::ops {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using OptionalTensor = std::optional<Tensor>;

// Input 1 of an activation with a bias.
Tensor bias_grad_if_needed(AutogradContext* node, const Tensor& dx, const Tensor& bias) {
  if (!bias.defined() || !node->needs_input_grad(1)) return {};
  const Tensor db = at::zeros(bias.sizes(), bias.options().dtype(wide_dtype(bias.scalar_type())));
  bias_grad_(db, dx);
  return db.to(bias.scalar_type());
}

struct BiasGelu : torch::autograd::Function<BiasGelu> {
  static Tensor forward(AutogradContext* node, const Tensor& x, const OptionalTensor& bias, int64_t form) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    node->save_for_backward({x, bias.value_or(Tensor())});
    node->saved_data["form"] = form;
    return bias_gelu(x, bias.value_or(Tensor()), to_gelu_form(form));
  }

  static variable_list backward(AutogradContext* node, const variable_list& gradients) {
    const auto saved = node->get_saved_variables();
    const auto form = to_gelu_form(node->saved_data["form"].toInt());
    const Tensor dx = bias_gelu_backward(gradients[0].contiguous(), saved[0], saved[1], form);
    return {dx, bias_grad_if_needed(node, dx, saved[1]), {}};
  }
};

struct Geglu : torch::autograd::Function<Geglu> {
  static Tensor forward(AutogradContext* node, const Tensor& gate_up, int64_t form) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    node->save_for_backward({gate_up});
    node->saved_data["form"] = form;
    return geglu(gate_up, to_gelu_form(form));
  }

  static variable_list backward(AutogradContext* node, const variable_list& gradients) {
    const auto form = to_gelu_form(node->saved_data["form"].toInt());
    return {geglu_backward(gradients[0].contiguous(), node->get_saved_variables()[0], form), {}};
  }
};

struct BiasSquaredRelu : torch::autograd::Function<BiasSquaredRelu> {
  static Tensor forward(AutogradContext* node, const Tensor& x, const OptionalTensor& bias) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    node->save_for_backward({x, bias.value_or(Tensor())});
    return bias_squared_relu(x, bias.value_or(Tensor()));
  }

  static variable_list backward(AutogradContext* node, const variable_list& gradients) {
    const auto saved = node->get_saved_variables();
    const Tensor dx = bias_squared_relu_backward(gradients[0].contiguous(), saved[0], saved[1]);
    return {dx, bias_grad_if_needed(node, dx, saved[1])};
  }
};

Tensor bias_gelu_autograd(const Tensor& x, const OptionalTensor& bias, int64_t form) {
  return BiasGelu::apply(x, bias, form);
}
Tensor geglu_autograd(const Tensor& gate_up, int64_t form) { return Geglu::apply(gate_up, form); }
Tensor bias_squared_relu_autograd(const Tensor& x, const OptionalTensor& bias) {
  return BiasSquaredRelu::apply(x, bias);
}

}  // namespace
}  // namespace megalith::ops

TORCH_LIBRARY_IMPL(megalith, Autograd, m) {
  m.impl("bias_gelu", TORCH_FN(megalith::ops::bias_gelu_autograd));
  m.impl("bias_gelu_backward", megalith::ops::not_differentiable());
  m.impl("geglu", TORCH_FN(megalith::ops::geglu_autograd));
  m.impl("geglu_backward", megalith::ops::not_differentiable());
  m.impl("bias_squared_relu", TORCH_FN(megalith::ops::bias_squared_relu_autograd));
  m.impl("bias_squared_relu_backward", megalith::ops::not_differentiable());
}
