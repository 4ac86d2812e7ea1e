// The experts' two linear layers as one Function over grouped products; weight gradients go straight into the
// Parameter's buffer, as those of nn/linear.cc.
#include <algorithm>
#include <cmath>
#include <utility>

#include "comm/groups.h"
#include "core/error.h"
#include "nn/activation.h"
#include "nn/deferred_gradients.h"
#include "nn/expert_bias.h"
#include "nn/function.h"
#include "nn/moe_layer.h"
#include "nn/option_rules.h"

namespace megalith {

namespace {

// (experts * rows, columns), also of a tensor (experts, rows, columns).
at::Tensor as_rows(const at::Tensor& weight) { return weight.dim() == 3 ? weight.flatten(0, 1) : weight; }

}  // namespace

struct GroupedLinearFunction : torch::autograd::Function<GroupedLinearFunction> {
  struct Call {
    const GroupedExperts* experts;
    Parameter* parameter;
    Group* input_ranks;     // with the other columns of the input; null: they are all here
    Group* gradient_ranks;  // of the output's gradient, likewise
    at::Tensor offsets;
    bool needs_dx;
    Kept input = {};               // what is to be kept of the input, where it is not the input itself
    KeptOperand x = {};            // nothing, where the weights get no gradient
    at::Tensor weight_scale = {};  // of the weights as an operand

    const MatmulRecipe& recipe() const { return *experts->recipe_; }
    int64_t layer() const { return experts->layers_[parameter == experts->down_ ? 1 : 0]; }
    OperandScope scope(Group* ranks) const {
      return {.group = ranks, .label = parameter->name(), .offsets = offsets, .layer = layer()};
    }
    Operand input_of(const at::Tensor& rows) const {
      return recipe().take(rows, OperandRole::kInput, scope(input_ranks));
    }
    Operand weights() const {
      return recipe().take(as_rows(parameter->data()), OperandRole::kWeight,
                           {.group = experts->etp_,
                            .label = parameter->name(),
                            .num_experts = experts->num_local_,
                            .scale = weight_scale,
                            .layer = layer()});
    }
  };

  // weight is there for the graph; values are read from the Parameter.
  static at::Tensor forward(torch::autograd::AutogradContext* node, const at::Tensor& x, const at::Tensor& /*weight*/,
                            Call call) {
    expect_contribution(call.parameter);
    const Operand input = call.input_of(x), weights = call.weights();
    if (call.parameter->is_trainable()) {
      call.x = call.recipe().keep({x, call.input}, input, call.scope(call.input_ranks));
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
    const Operand dy =
        call.recipe().take(gradients[0].contiguous(), OperandRole::kGradient, call.scope(call.gradient_ranks));
    at::Tensor dx;
    if (call.needs_dx) dx = call.recipe().grouped_dgrad(dy, call.weights(), call.offsets);
    if (call.parameter->is_trainable()) {
      MEGALITH_CHECK(call.x.is_defined(), "{}: a second backward through one graph", call.parameter->name());
      // Taken from the node, which lives until the whole backward pass is done.
      const auto add_weight_gradient = [parameter = call.parameter, recipe = call.experts->recipe_,
                                        offsets = call.offsets, dy, x = std::exchange(call.x, {}).take()] {
        const at::NoGradGuard no_grad;
        const Parameter::GradTarget target = parameter->open_grad();
        recipe->grouped_wgrad_(as_rows(target.buffer), dy, x, offsets, target.accumulate);
        parameter->close_grad();
      };
      DeferredGradients* deferred = call.experts->deferred_;
      if (deferred != nullptr && deferred->is_deferring())
        deferred->defer(add_weight_gradient);
      else
        add_weight_gradient();
    }
    return {dx, {}, {}};
  }
};

namespace {

int64_t experts_of_rank(int64_t num_experts, int ep) {
  if (num_experts % ep == 0) return num_experts / ep;
  throw UserError(fmt::format("expert_model_parallel_size {} does not divide num_experts {}", ep, num_experts),
                  fmt::format("set expert_model_parallel_size to a divisor of {}", num_experts));
}

int64_t expert_width_of_rank(int64_t ffn, int etp) {
  if (ffn % etp == 0) return ffn / etp;
  throw UserError(fmt::format("expert_tensor_parallel_size {} does not divide moe_ffn_hidden_size {}", etp, ffn),
                  fmt::format("set expert_tensor_parallel_size to a divisor of {}", ffn));
}

// Rows of this rank for each of its b * s tokens, when all experts get as many.
double expert_rows_per_token(const Groups& groups, const RouterOptions& options) {
  // The etp x ep ranks have b s / tp tokens each, and every ep rank gets 1 / ep of all their pairs. The capacity is
  // moe_expert_capacity_factor times as many rows: padding fills it, otherwise it is a limit.
  const double balanced = static_cast<double>(options.moe_router_topk) * groups.etp->size() / groups.tp->size();
  if (!options.has_capacity()) return balanced;
  const double factor = *options.moe_expert_capacity_factor;
  return balanced * (options.moe_pad_expert_input_to_capacity ? factor : std::min(1.0, factor));
}

}  // namespace

GroupedExperts::GroupedExperts(const LayerContext& context, const std::string& name, const LayerOptions& options,
                               const MoeSite& site)
    : activation_(site.activation.value_or(options.expert_activation())),
      kernels_(context.kernels),
      recipe_(recipe_of(context)),
      etp_(context.groups->etp.get()),
      deferred_(context.deferred_gradients),
      policy_(context.recompute),
      weighs_inputs_(options.moe_apply_probs_on_input),
      num_local_(experts_of_rank(options.expert_count(), context.groups->ep->size())),
      ffn_(expert_width_of_rank(options.expert_ffn_size(), context.groups->etp->size())),
      rows_per_token_(expert_rows_per_token(*context.groups, options)) {
  require_options(name, options, check_mlp);
  const Groups& groups = *context.groups;
  const int64_t h = options.hidden_size, etp = groups.etp->size(), part = groups.etp->rank();
  first_bias_column_ = h * part / etp;
  ExpertPlacements placements = expert_placements({.name = name + ".experts",
                                                   .num_experts = options.expert_count(),
                                                   .first_expert = groups.ep->rank() * num_local_,
                                                   .num_local = num_local_,
                                                   .ffn = options.expert_ffn_size(),
                                                   .first_column = part * ffn_,
                                                   .num_columns = ffn_,
                                                   .hidden = h,
                                                   .first_bias_column = first_bias_column_,
                                                   .num_bias_columns = h * (part + 1) / etp - first_bias_column_,
                                                   .is_gated = activation_.is_gated},
                                                  site.names);
  activation_.is_interleaved = site.names.are_interleaved;
  // Where the experts are cut as the dense layers are, their gradients travel with the dense ones'.
  const bool is_dense_view = groups.ep->size() == 1 && groups.etp->size() == groups.tp->size();
  const AxisSet axes = is_dense_view ? AxisSet{Axis::kDp, Axis::kCp} : AxisSet{Axis::kEdp};
  for (Placement* placement : {&placements.up, &placements.down, &placements.up_bias, &placements.down_bias}) {
    placement->replica_axes = placement->partial_axes = axes;
  }

  ParameterOptions parameter{.dtype = context.dtype,
                             .device = context.device,
                             .init = Init::normal(options.init_method_std),
                             .role = ParameterRole::kMatrix};
  gate_up_ =
      &register_parameter(name + (activation_.is_gated ? ".experts.gate_up_proj" : ".experts.up_proj") + ".weight",
                          std::move(placements.up), parameter);
  parameter.init = Init::normal(site.output_init_std);
  down_ = &register_parameter(name + ".experts.down_proj.weight", std::move(placements.down), parameter);
  if (options.has_linear_bias()) register_biases(context, name, std::move(placements));
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Parameter& weight = i == 0 ? *gate_up_ : *down_;
    layers_[i] = recipe_->add_layer({.name = weight.name().substr(0, weight.name().rfind(".weight")),
                                     .dtype = context.dtype,
                                     .device = context.buffer_device.value_or(context.device),
                                     .num_weight_elements = weight.placement().num_local_elements(),
                                     .num_experts = options.expert_count(),
                                     .first_expert = groups.ep->rank() * num_local_,
                                     .num_local_experts = num_local_});
  }
}

void GroupedExperts::register_biases(const LayerContext& context, const std::string& name,
                                     ExpertPlacements placements) {
  const ParameterOptions parameter{.dtype = context.dtype,
                                   .device = context.device,
                                   .init = Init::constant(0),
                                   .decay_mult = 0,
                                   .role = ParameterRole::kVector};
  gate_up_bias_ =
      &register_parameter(name + (activation_.is_gated ? ".experts.gate_up_proj" : ".experts.up_proj") + ".bias",
                          std::move(placements.up_bias), parameter);
  down_bias_ = &register_parameter(name + ".experts.down_proj.bias", std::move(placements.down_bias), parameter);
}

at::Tensor GroupedExperts::multiply(const Activation& x, Parameter* weight, const at::Tensor& offsets) {
  // Rows travel whole to all parts of their expert: those up from them split their results, those down their inputs.
  const bool is_down = weight == down_;
  const GroupedLinearFunction::Call call{.experts = this,
                                         .parameter = weight,
                                         .input_ranks = is_down ? etp_ : nullptr,
                                         .gradient_ranks = is_down ? nullptr : etp_,
                                         .offsets = offsets,
                                         .needs_dx = x.value.requires_grad(),
                                         .input = x.kept};
  if (!is_recording({x.value, weight->value()})) return GroupedLinearFunction::compute(call, x.value);
  return GroupedLinearFunction::apply(x.value, weight->value(), call);
}

at::Tensor GroupedExperts::forward(const ExpertRows& rows) {
  at::Tensor x = rows.x, weights = rows.weights;
  if (weighs_inputs_) x = (x * std::exchange(weights, {}).unsqueeze(-1)).to(x.scalar_type());
  at::Tensor up = multiply(x, gate_up_, rows.offsets);
  if (gate_up_bias_ != nullptr) up = with_expert_bias(up, *gate_up_bias_, 0, {}, rows.offsets, kernels_);
  const at::Tensor y =
      multiply(activated_rows(up, weights, activation_, kernels_, policy_.expert_activation), down_, rows.offsets);
  if (down_bias_ == nullptr) return y;
  return with_expert_bias(y, *down_bias_, first_bias_column_, weights, rows.offsets, kernels_);
}

double GroupedExperts::own_forward_flops(const CostShape& shape) const {
  const double rows = std::ceil(rows_per_token_ * static_cast<double>(shape.b * shape.s));
  return 2 * rows *
         static_cast<double>((activation_.is_gated ? 3 : 2) * ffn_ * gate_up_->placement().local_shape.back());
}

}  // namespace megalith
