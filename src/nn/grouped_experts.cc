// The experts' two linear layers as one Function over grouped products; weight gradients go straight into the
// Parameter's buffer, as those of nn/linear.cc.
#include <algorithm>
#include <cmath>
#include <utility>

#include "comm/groups.h"
#include "core/error.h"
#include "nn/activation.h"
#include "nn/deferred_gradients.h"
#include "nn/function.h"
#include "nn/moe_layer.h"
#include "ops/grouped_linear/grouped_linear.h"

namespace megalith {

struct GroupedLinearFunction : torch::autograd::Function<GroupedLinearFunction> {
  struct Call {
    const GroupedExperts* experts;
    Parameter* parameter;
    at::Tensor offsets;
    bool needs_dx;
    RestoreInput restore;  // null: the input is saved with the node, or not needed
  };

  // weight is there for the graph; values are read from the Parameter.
  static at::Tensor forward(torch::autograd::AutogradContext* node, const at::Tensor& x, const at::Tensor& /*weight*/,
                            const Call& call) {
    expect_contribution(call.parameter);
    const bool needs_x = call.parameter->is_trainable();
    node->save_for_backward({needs_x && !call.restore ? x : at::Tensor()});
    hold(node, call);
    if (!needs_x) held<Call>(node).restore = {};
    return compute(call, x);
  }

  static at::Tensor compute(const Call& call, const at::Tensor& x) {
    return ops::grouped_linear_forward(x, call.parameter->data(), call.offsets, call.experts->kernels_);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* node,
                                                 const torch::autograd::variable_list& gradients) {
    Call& call = held<Call>(node);
    const GroupedExperts& experts = *call.experts;
    const at::Tensor dy = gradients[0].contiguous();
    at::Tensor dx;
    if (call.needs_dx) dx = ops::grouped_linear_dgrad(dy, call.parameter->data(), call.offsets, experts.kernels_);
    if (call.parameter->is_trainable()) {
      const RestoreInput restore = std::exchange(call.restore, {});
      const auto add_weight_gradient = [parameter = call.parameter, kernels = experts.kernels_, offsets = call.offsets,
                                        dy, x = restore ? restore() : node->get_saved_variables()[0]] {
        const at::NoGradGuard no_grad;
        const Parameter::GradTarget target = parameter->open_grad();
        ops::grouped_linear_wgrad_(target.buffer, dy, x, offsets, target.accumulate, kernels);
        parameter->close_grad();
      };
      if (experts.deferred_ != nullptr && experts.deferred_->is_deferring())
        experts.deferred_->defer(add_weight_gradient);
      else
        add_weight_gradient();
    }
    return {dx, {}, {}};
  }
};

namespace {

int64_t experts_of_rank(const MoeOptions& options, int ep) {
  if (options.num_experts % ep == 0) return options.num_experts / ep;
  throw UserError(fmt::format("expert_model_parallel_size {} does not divide num_experts {}", ep, options.num_experts),
                  fmt::format("set expert_model_parallel_size to a divisor of {}", options.num_experts));
}

int64_t expert_width_of_rank(const MoeOptions& options, int etp) {
  if (options.ffn % etp == 0) return options.ffn / etp;
  throw UserError(
      fmt::format("expert_tensor_parallel_size {} does not divide moe_ffn_hidden_size {}", etp, options.ffn),
      fmt::format("set expert_tensor_parallel_size to a divisor of {}", options.ffn));
}

// Rows of this rank for each of its b * s tokens, when all experts get as many.
double expert_rows_per_token(const Groups& groups, const MoeOptions& options) {
  // The etp x ep ranks have b s / tp tokens each, and every ep rank gets 1 / ep of all their pairs. The capacity is
  // capacity_factor times as many rows: padding fills it, otherwise it is a limit.
  const double balanced = static_cast<double>(options.router.topk) * groups.etp->size() / groups.tp->size();
  if (!options.router.capacity_factor) return balanced;
  return balanced *
         (options.pads_to_capacity ? *options.router.capacity_factor : std::min(1.0, *options.router.capacity_factor));
}

}  // namespace

GroupedExperts::GroupedExperts(const LayerContext& context, const std::string& name, const MoeOptions& options)
    : activation_(options.activation),
      kernels_(context.kernels),
      deferred_(context.deferred_gradients),
      recomputes_activation_(context.recompute.expert_activation),
      num_local_(experts_of_rank(options, context.groups->ep->size())),
      ffn_(expert_width_of_rank(options, context.groups->etp->size())),
      rows_per_token_(expert_rows_per_token(*context.groups, options)) {
  const Groups& groups = *context.groups;
  const int64_t h = options.hidden, f = options.ffn, first_column = groups.etp->rank() * ffn_;
  Placement up, down;
  for (int64_t j = 0; j < num_local_; ++j) {
    const std::string expert = fmt::format("{}.experts.{}.", name, groups.ep->rank() * num_local_ + j);
    const auto add_rows = [&](const std::string& linear) {
      const Box canonical{{first_column, 0}, {ffn_, h}};
      up.pieces.push_back({expert + linear + ".weight", {f, h}, canonical, Box{{up.local_shape[0], 0}, {ffn_, h}}});
      up.local_shape[0] += ffn_;
    };
    if (j == 0) up.local_shape = {0, h};
    if (activation_.is_gated) add_rows(options.names.gate);
    add_rows(options.names.up);
    down.pieces.push_back({expert + options.names.down + ".weight",
                           {h, f},
                           Box{{0, first_column}, {h, ffn_}},
                           Box{{j * h, 0}, {h, ffn_}}});
  }
  down.local_shape = {num_local_ * h, ffn_};
  // Where the experts are cut as the dense layers are, their gradients travel with the dense ones'.
  const bool is_dense_view = groups.ep->size() == 1 && groups.etp->size() == groups.tp->size();
  const AxisSet axes = is_dense_view ? AxisSet{Axis::kDp, Axis::kCp} : AxisSet{Axis::kEdp};
  up.replica_axes = up.partial_axes = down.replica_axes = down.partial_axes = axes;

  ParameterOptions parameter{.dtype = context.dtype,
                             .device = context.device,
                             .init = Init::normal(options.init_std),
                             .role = ParameterRole::kMatrix};
  gate_up_ =
      &register_parameter(name + (activation_.is_gated ? ".experts.gate_up_proj" : ".experts.up_proj") + ".weight",
                          std::move(up), parameter);
  parameter.init = Init::normal(options.output_init_std);
  down_ = &register_parameter(name + ".experts.down_proj.weight", std::move(down), parameter);
}

at::Tensor GroupedExperts::multiply(const at::Tensor& x, Parameter* weight, const at::Tensor& offsets,
                                    const RestoreInput& restore) {
  const GroupedLinearFunction::Call call{this, weight, offsets, x.requires_grad(), restore};
  if (!is_recording({x, weight->value()})) return GroupedLinearFunction::compute(call, x);
  return GroupedLinearFunction::apply(x, weight->value(), call);
}

at::Tensor GroupedExperts::forward(const ExpertRows& rows) {
  const at::Tensor gate_up = multiply(rows.x, gate_up_, rows.offsets, {});
  const at::Tensor product = activated_rows(gate_up, rows.weights, activation_, kernels_);
  if (!recomputes_activation_) return multiply(product, down_, rows.offsets, {});
  return multiply(
      product, down_, rows.offsets,
      [kernels = kernels_, activation = activation_, gate_up = gate_up.detach(), weights = rows.weights.detach()] {
        return ops::expert_activation(gate_up, weights, activation, kernels);
      });
}

int64_t GroupedExperts::num_rows(const CostShape& shape) const {
  return static_cast<int64_t>(std::ceil(rows_per_token_ * static_cast<double>(shape.b * shape.s)));
}

LayerCost GroupedExperts::own_cost(const CostShape& shape) const {
  const int64_t rows = num_rows(shape), h = gate_up_->placement().local_shape[1];
  const int64_t product = rows * ffn_ * shape.activation_bytes, up = activation_.is_gated ? 2 * product : product;
  const int64_t input = rows * h * shape.activation_bytes;
  // Kept are the rows, gate and up, the product, and the rows' weights. In backward there are the gradients of gate and
  // up and of what comes in, and the product if it is computed again.
  const int64_t weights = rows * (gate_up_->grad_dtype() == at::kDouble ? 8 : 4);
  return {
      .forward_flops = 2 * static_cast<double>(rows) * static_cast<double>((activation_.is_gated ? 3 : 2) * ffn_ * h),
      .kept_bytes = (gate_up_->is_trainable() ? input : 0) + up + weights +
                    (recomputes_activation_ || !down_->is_trainable() ? 0 : product),
      .working_bytes = up + (recomputes_activation_ ? product : 0) + input};
}

}  // namespace megalith
