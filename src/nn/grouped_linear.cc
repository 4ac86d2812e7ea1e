#include "nn/grouped_linear.h"

#include <cmath>
#include <utility>

#include "comm/groups.h"
#include "core/error.h"
#include "nn/adapter_options.h"
#include "nn/deferred_gradients.h"
#include "nn/function.h"

namespace megalith {

namespace {

// (experts * rows, columns), from either shape.
at::Tensor as_rows(const at::Tensor& weight) { return weight.dim() == 3 ? weight.flatten(0, 1) : weight; }

}  // namespace

struct GroupedLinearFunction : torch::autograd::Function<GroupedLinearFunction> {
  struct Call {
    GroupedLinear* linear;
    at::Tensor offsets;
    bool needs_dx;
    Kept input = {};
    KeptOperand x = {};  // empty without a weight gradient
    at::Tensor weight_scale = {};

    Parameter* parameter() const { return linear->weight_; }
    const MatmulRecipe& recipe() const { return *linear->recipe_; }
    OperandScope scope(Group* ranks) const {
      return {.group = ranks, .label = parameter()->name(), .offsets = offsets, .layer = linear->layer_};
    }
    Operand input_of(const at::Tensor& rows) const {
      return recipe().take(rows, OperandRole::kInput, scope(linear->input_ranks_));
    }
    Operand weights() const {
      return recipe().take(as_rows(parameter()->unpacked()), OperandRole::kWeight,
                           {.group = linear->weight_ranks_,
                            .label = parameter()->name(),
                            .num_experts = linear->num_local_,
                            .scale = weight_scale,
                            .layer = linear->layer_});
    }
  };

  static at::Tensor forward(torch::autograd::AutogradContext* node, const at::Tensor& x, const at::Tensor& /*weight*/,
                            Call call) {
    expect_contribution(call.parameter());
    const Operand input = call.input_of(x), weights = call.weights();
    if (call.parameter()->is_trainable()) {
      call.x = call.recipe().keep({x, call.input}, input, call.scope(call.linear->input_ranks_));
    }
    call.input = {};
    call.weight_scale = weights.scale;
    const at::Tensor y = call.recipe().grouped_forward(input, weights, call.offsets);
    hold(node, std::move(call));
    return y;
  }

  static at::Tensor compute(const Call& call, const at::Tensor& x) {
    return call.recipe().grouped_forward(call.input_of(x), call.weights(), call.offsets);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* node,
                                                 const torch::autograd::variable_list& gradients) {
    Call& call = held<Call>(node);
    const Operand dy = call.recipe().take(gradients[0].contiguous(), OperandRole::kGradient,
                                          call.scope(call.linear->gradient_ranks_));
    at::Tensor dx;
    if (call.needs_dx) dx = call.recipe().grouped_dgrad(dy, call.weights(), call.offsets);
    if (call.parameter()->is_trainable()) {
      MEGALITH_CHECK(call.x.is_defined(), "{}: a second backward through one graph", call.parameter()->name());
      const auto add_weight_gradient = [parameter = call.parameter(), recipe = call.linear->recipe_,
                                        offsets = call.offsets, dy, x = std::exchange(call.x, {}).take()] {
        const at::NoGradGuard no_grad;
        const Parameter::GradTarget target = parameter->open_grad();
        recipe->grouped_wgrad_(as_rows(target.buffer), dy, x, offsets, target.accumulate);
        parameter->close_grad();
      };
      DeferredGradients* deferred = call.linear->deferred_;
      if (deferred != nullptr && deferred->is_deferring())
        deferred->defer(add_weight_gradient);
      else
        add_weight_gradient();
    }
    return {dx, {}, {}};
  }
};

GroupedLinear::GroupedLinear(const LayerContext& context, const GroupedLinearSite& site)
    : recipe_(recipe_of(context)),
      deferred_(context.deferred_gradients),
      weight_ranks_(context.groups->etp.get()),
      input_ranks_(site.input_ranks),
      gradient_ranks_(site.gradient_ranks),
      num_local_(site.num_local),
      rows_per_token_(site.rows_per_token) {
  ParameterOptions parameter{.dtype = context.dtype,
                             .device = context.device,
                             .init = site.init,
                             .is_trainable = site.is_trainable,
                             .role = ParameterRole::kMatrix,
                             .is_adapter = site.is_adapter};
  // Stacked experts stay unpacked.
  const bool are_matrices = site.placement.local_shape.size() == 2;
  if (context.lora != nullptr && context.lora->packs_weights() && are_matrices && !site.is_adapter) {
    parameter.packing = WeightPacking{.ranks = weight_ranks_, .cut_dim = site.cut_dim, .kernels = context.kernels};
  }
  weight_ = &register_parameter(site.name + ".weight", site.placement, parameter);
  layer_ = recipe_->add_layer({.name = site.name,
                               .dtype = context.dtype,
                               .device = context.buffer_device.value_or(context.device),
                               .num_weight_elements = weight_->placement().num_local_elements(),
                               .num_experts = site.num_experts,
                               .first_expert = site.first_expert,
                               .num_local_experts = site.num_local});
}

at::Tensor GroupedLinear::forward(const Activation& x, const at::Tensor& offsets) {
  const GroupedLinearFunction::Call call{
      .linear = this, .offsets = offsets, .needs_dx = x.value.requires_grad(), .input = x.kept};
  if (!is_recording({x.value, weight_->value()})) return GroupedLinearFunction::compute(call, x.value);
  return GroupedLinearFunction::apply(x.value, weight_->value(), call);
}

double GroupedLinear::own_forward_flops(const CostShape& shape) const {
  const double rows = std::ceil(rows_per_token_ * static_cast<double>(shape.b * shape.s));
  return 2 * rows * static_cast<double>(weight_->placement().num_local_elements() / num_local_);
}

}  // namespace megalith
