// A Function whose backward runs its own backward pass.
#include "nn/recompute.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "core/error.h"
#include "nn/function.h"

namespace megalith {

struct RecomputeFunction : torch::autograd::Function<RecomputeFunction> {
  struct Call {
    BlockBody body;
    KeepInputs keep;
    std::vector<Parameter*> parameters;
    std::vector<bool> is_input_defined, is_output_defined, needs_gradient;
    std::vector<Kept> kept;
  };

  // Graphs take only defined tensors.
  static std::vector<at::Tensor> in_slots(const std::vector<bool>& is_defined, at::TensorList tensors) {
    std::vector<at::Tensor> slots(is_defined.size());
    size_t next = 0;
    for (size_t i = 0; i < slots.size(); ++i) {
      if (is_defined[i]) slots[i] = tensors[next++];
    }
    return slots;
  }

  // anchor: a parameter, to have a graph even if no input needs a gradient.
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* node, const at::TensorList& inputs,
                                                const std::optional<at::Tensor>& /*anchor*/,
                                                const std::shared_ptr<Call>& call) {
    node->set_materialize_grads(false);
    for (Parameter* parameter : call->parameters) parameter->hold();
    std::vector<at::Tensor> detached;
    for (const at::Tensor& input : inputs) {
      call->needs_gradient.push_back(input.requires_grad());
      detached.push_back(input.detach());
    }
    std::vector<at::Tensor> outputs = call->body(in_slots(call->is_input_defined, detached));
    if (call->keep)
      call->kept = std::exchange(call->keep, {})(detached);
    else
      for (const at::Tensor& input : detached) call->kept.emplace_back(input);
    hold(node, call);
    for (const at::Tensor& output : outputs) call->is_output_defined.push_back(output.defined());
    std::erase_if(outputs, [](const at::Tensor& output) { return !output.defined(); });
    return outputs;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* node,
                                                 const torch::autograd::variable_list& gradients) {
    Call& call = *held<std::shared_ptr<Call>>(node);
    // The graph outlives this call; kept tensors must not.
    std::vector<Kept> kept = std::exchange(call.kept, {});
    MEGALITH_CHECK(kept.size() == call.needs_gradient.size(),
                   "{} inputs are kept of {}: a second backward through one graph?", kept.size(),
                   call.needs_gradient.size());
    std::vector<at::Tensor> leaves;
    for (size_t i = 0; i < kept.size(); ++i) {
      leaves.push_back(kept[i].take().detach().set_requires_grad(call.needs_gradient[i]));
    }
    torch::autograd::variable_list roots, root_gradients;
    {
      const at::AutoGradMode record(true);
      const std::vector<at::Tensor> outputs = call.body(in_slots(call.is_input_defined, leaves));
      const std::vector<at::Tensor> slots = in_slots(call.is_output_defined, gradients);
      for (size_t i = 0; i < outputs.size(); ++i) {
        if (!slots[i].defined() || !outputs[i].requires_grad()) continue;
        roots.push_back(outputs[i]);
        root_gradients.push_back(slots[i]);
      }
    }
    if (!roots.empty()) torch::autograd::backward(roots, root_gradients);
    for (Parameter* parameter : call.parameters) parameter->release();
    torch::autograd::variable_list result;
    for (const at::Tensor& leaf : leaves) result.push_back(leaf.grad());
    result.resize(leaves.size() + 2);
    return result;
  }
};

std::vector<at::Tensor> recomputed(const BlockBody& body, const std::vector<at::Tensor>& inputs,
                                   const std::vector<Parameter*>& parameters, const KeepInputs& keep) {
  if (!at::GradMode::is_enabled()) return body(inputs);
  auto call = std::make_shared<RecomputeFunction::Call>();
  std::copy_if(parameters.begin(), parameters.end(), std::back_inserter(call->parameters),
               [](const Parameter* parameter) { return parameter->is_trainable(); });
  std::vector<at::Tensor> defined;
  bool needs_gradient = !call->parameters.empty();
  for (const at::Tensor& input : inputs) {
    call->is_input_defined.push_back(input.defined());
    if (!input.defined()) continue;
    defined.push_back(input);
    needs_gradient = needs_gradient || input.requires_grad();
  }
  if (!needs_gradient) return body(inputs);
  call->body = body;
  call->keep = keep;
  std::optional<at::Tensor> anchor;
  if (!call->parameters.empty()) anchor = call->parameters.front()->value();
  const std::vector<at::Tensor> outputs = RecomputeFunction::apply(at::TensorList(defined), anchor, call);
  return RecomputeFunction::in_slots(call->is_output_defined, outputs);
}

}  // namespace megalith
