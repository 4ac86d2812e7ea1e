#include "nn/moe_layer.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "comm/groups.h"
#include "core/error.h"
#include "nn/option_rules.h"
#include "nn/recompute.h"
#include "nn/token_exchange.h"

namespace megalith {

namespace {

RouterSite router_site(const std::string& name, const LayerOptions& options, const MoeSite& site) {
  return {.weight_name = name + "." + site.names.router + ".weight",
          .bias_name = name + "." + site.names.bias,
          .linear_bias_name = options.has_linear_bias() ? name + "." + site.names.router + ".bias" : "",
          .hidden = options.hidden_size,
          .init_std = options.init_method_std,
          .layer = site.layer};
}

// In capacities of one microbatch: as many as there are microbatches on the etp x ep ranks. These are consecutive in
// the order tp, cp, dp, so they cover part of one microbatch's ranks, or several.
int64_t num_padded_capacities(const LayerContext& context, const std::string& name, const RouterOptions& options) {
  require_options(name, options, check_capacity);
  if (!options.moe_pad_expert_input_to_capacity) return 0;
  const int64_t sharing = context.groups->tp_cp->size(), ranks = context.groups->etp_ep->size();
  if (ranks % sharing != 0 && sharing % ranks != 0) {
    throw UserError(fmt::format("moe_pad_expert_input_to_capacity with microbatches on {} ranks each "
                                "(tensor_model_parallel_size × context_parallel_size) and experts on {} "
                                "(expert_tensor_parallel_size × expert_model_parallel_size)",
                                sharing, ranks),
                    "make one a multiple of the other, or leave the padding out");
  }
  return std::max<int64_t>(1, ranks / sharing);
}

LayerContext shared_expert_context(LayerContext context) {
  // Recomputing the whole layer covers it.
  context.recompute.mlp = context.recompute.shared_experts && !context.recompute.moe;
  return context;
}

}  // namespace

MoeLayer::MoeLayer(const LayerContext& context, const std::string& name, const LayerOptions& options,
                   const MoeSite& site)
    : name_(name),
      tp_(context.groups->tp),
      is_sequence_parallel_(context.is_sequence_parallel && tp_->size() > 1),
      policy_(context.recompute),
      num_capacities_(num_padded_capacities(context, name, options)),
      router_(context, options, router_site(name, options, site)),
      dispatcher_(context, options.dispatcher(), name, options.expert_count()),
      experts_(context, name, options, site),
      overlaps_shared_expert_(options.moe_shared_expert_overlap) {
  register_module(router_);
  register_module(experts_);
  if (options.shared_expert_size() == 0) return;
  const MlpSite shared{
      .output_init_std = site.output_init_std, .ffn = options.shared_expert_size(), .activation = site.activation};
  shared_ = std::make_unique<Mlp>(shared_expert_context(context), name + "." + site.names.shared, options, shared);
  register_module(*shared_);
}

at::Tensor MoeLayer::forward(const Activation& x, const ForwardContext& forward) {
  if (!policy_.moe) return transform(x.value, forward);
  const BlockBody body = [this, forward](const std::vector<at::Tensor>& inputs) {
    return std::vector<at::Tensor>{transform(inputs[0], forward)};
  };
  KeepInputs keep;
  if (x.kept.is_defined()) keep = [kept = x.kept](const auto& /*inputs*/) { return std::vector<Kept>{kept}; };
  return recomputed(body, {x.value}, parameters(), keep)[0];
}

at::Tensor MoeLayer::transform(const at::Tensor& x, const ForwardContext& forward) {
  const bool is_split_here = !is_sequence_parallel_;
  const at::Tensor tokens = is_split_here ? split_tokens(x, tp_, name_ + " tokens") : x;
  const int64_t num_tokens = is_split_here ? x.size(0) : x.size(0) * tp_->size();
  const auto [routed, routing] = router_.forward(tokens, forward, num_tokens);

  at::Tensor of_shared;
  const auto compute_shared = [&] { of_shared = shared_->forward(x, forward); };
  const bool overlaps = shared_ && overlaps_shared_expert_;
  std::shared_ptr<TokenDispatcher::Dispatched> state;
  const ExpertRows rows =
      dispatcher_.dispatch(routed, routing, routing.capacity * num_capacities_,
                           overlaps ? std::function<void()>(compute_shared) : std::function<void()>(), state);
  at::Tensor y = dispatcher_.combine(experts_.forward(rows), state);
  if (is_split_here) y = join_tokens(y, num_tokens, tp_, name_ + " output");
  if (!shared_) return y;
  if (!overlaps) compute_shared();
  return y + of_shared;
}

}  // namespace megalith
