// Two grouped products around the activation, plus adapters and biases.
#include <algorithm>
#include <cmath>
#include <utility>

#include "comm/groups.h"
#include "core/error.h"
#include "nn/activation.h"
#include "nn/expert_bias.h"
#include "nn/moe_layer.h"
#include "nn/option_rules.h"

namespace megalith {

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

// Per token of the b * s, if experts are balanced.
double expert_rows_per_token(const Groups& groups, const RouterOptions& options) {
  // The etp x ep ranks have b s / tp tokens each; every ep rank gets 1 / ep of their pairs. Capacity: filled by padding
  // if on, otherwise a limit.
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
      policy_(context.recompute),
      weighs_inputs_(options.moe_apply_probs_on_input) {
  const Groups& groups = *context.groups;
  const int64_t num_local = experts_of_rank(options.expert_count(), groups.ep->size()),
                ffn = expert_width_of_rank(options.expert_ffn_size(), groups.etp->size());
  require_options(name, options, check_mlp);
  Group* const etp = groups.etp.get();
  const int64_t h = options.hidden_size, num_parts = etp->size(), part = etp->rank();
  first_bias_column_ = h * part / num_parts;
  const ExpertCut cut{.name = name + ".experts",
                      .num_experts = options.expert_count(),
                      .first_expert = groups.ep->rank() * num_local,
                      .num_local = num_local,
                      .ffn = options.expert_ffn_size(),
                      .first_column = part * ffn,
                      .num_columns = ffn,
                      .hidden = h,
                      .first_bias_column = first_bias_column_,
                      .num_bias_columns = h * (part + 1) / num_parts - first_bias_column_,
                      .is_gated = activation_.is_gated};
  ExpertPlacements placements = expert_placements(cut, site.names);
  activation_.is_interleaved = site.names.are_interleaved;
  // Experts cut like dense layers reduce gradients with them.
  const bool is_dense_view = groups.ep->size() == 1 && groups.etp->size() == groups.tp->size();
  const AxisSet axes = is_dense_view ? AxisSet{Axis::kDp, Axis::kCp} : AxisSet{Axis::kEdp};
  for (Placement* placement : {&placements.up, &placements.down, &placements.up_bias, &placements.down_bias}) {
    placement->replica_axes = placement->partial_axes = axes;
  }

  const double rows_per_token = expert_rows_per_token(groups, options);
  const std::string up_name = cut.name + (activation_.is_gated ? ".gate_up_proj" : ".up_proj");
  const auto make = [&](const std::string& linear, Placement placement, bool is_down, double init_std) {
    return std::make_unique<GroupedLinear>(context, GroupedLinearSite{.name = linear,
                                                                      .placement = std::move(placement),
                                                                      .num_experts = cut.num_experts,
                                                                      .first_expert = cut.first_expert,
                                                                      .num_local = num_local,
                                                                      .rows_per_token = rows_per_token,
                                                                      .cut_dim = is_down ? 1 : 0,
                                                                      .input_ranks = is_down ? etp : nullptr,
                                                                      .gradient_ranks = is_down ? nullptr : etp,
                                                                      .init = Init::normal(init_std)});
  };
  gate_up_ = make(up_name, std::move(placements.up), false, options.init_method_std);
  down_ = make(cut.name + ".down_proj", std::move(placements.down), true, site.output_init_std);
  register_module(*gate_up_);
  register_module(*down_);
  if (options.has_linear_bias()) register_biases(context, name, std::move(placements));

  if (site.names.are_stacked()) return;  // have no adapters
  ExpertAdapterSite beside{.name = up_name,
                           .linears = {site.names.up},
                           .axes = axes,
                           .part_axis = is_dense_view ? Axis::kTp : Axis::kEtp,
                           .rows_per_token = rows_per_token};
  if (activation_.is_gated) beside.linears.insert(beside.linears.begin(), site.names.gate);
  const auto make_adapter = [&] {
    adaptable_.push_back(adaptable_experts(cut, beside));
    std::unique_ptr<ExpertAdapter> adapter = ExpertAdapter::make(context, cut, beside);
    if (adapter != nullptr) register_module(*adapter);
    return adapter;
  };
  up_adapter_ = make_adapter();
  beside.name = cut.name + ".down_proj";
  beside.linears = {site.names.down};
  beside.is_down = true;
  down_adapter_ = make_adapter();
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

at::Tensor GroupedExperts::multiply(GroupedLinear& linear, ExpertAdapter* adapter, const Activation& x,
                                    const at::Tensor& offsets) {
  const at::Tensor y = linear.forward(x, offsets);
  return adapter == nullptr ? y : adapter->add_to(y, x, offsets);
}

at::Tensor GroupedExperts::forward(const ExpertRows& rows) {
  at::Tensor x = rows.x, weights = rows.weights;
  if (weighs_inputs_) x = (x * std::exchange(weights, {}).unsqueeze(-1)).to(x.scalar_type());
  at::Tensor up = multiply(*gate_up_, up_adapter_.get(), x, rows.offsets);
  if (gate_up_bias_ != nullptr) up = with_expert_bias(up, *gate_up_bias_, 0, {}, rows.offsets, kernels_);
  const Activation inner = activated_rows(up, weights, activation_, kernels_, policy_.expert_activation);
  const at::Tensor y = multiply(*down_, down_adapter_.get(), inner, rows.offsets);
  if (down_bias_ == nullptr) return y;
  return with_expert_bias(y, *down_bias_, first_bias_column_, weights, rows.offsets, kernels_);
}

}  // namespace megalith
