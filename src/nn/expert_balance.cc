#include "nn/expert_balance.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "comm/distribution.h"
#include "nn/function.h"
#include "nn/microbatch_tokens.h"

namespace megalith {
namespace {

struct AttachFunction : torch::autograd::Function<AttachFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* node, const at::Tensor& x, const at::Tensor& objective) {
    node->saved_data["dtype"] = objective.scalar_type();
    node->saved_data["device"] = objective.device();
    return x.detach();
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* node,
                                                 const torch::autograd::variable_list& gradients) {
    const auto options = at::TensorOptions()
                             .dtype(node->saved_data.at("dtype").toScalarType())
                             .device(node->saved_data.at("device").toDevice());
    return {gradients[0], at::ones({}, options)};
  }
};

}  // namespace

at::Tensor StepCounts::mean_with(const at::Tensor& counts, Group& dp, std::string_view label) {
  const at::Tensor all = counts.clone();
  dp.all_reduce(all, ReduceOp::kSum, label).wait();
  sum_ = sum_.defined() ? sum_ + all : all;
  return sum_ / ++num_microbatches_;
}

bool has_balance_loss(const RouterOptions& options) {
  const RouterBalancing balancing = options.moe_router_load_balancing_type;
  return options.moe_aux_loss_coeff != 0 && balancing != RouterBalancing::kNone &&
         balancing != RouterBalancing::kSinkhorn;
}

bool has_router_terms(const RouterOptions& options) {
  return has_balance_loss(options) || options.moe_z_loss_coeff.value_or(0) != 0;
}

ops::RouterSums router_sums(const RouterOptions& options, const MicrobatchTokens& tokens, bool has_terms,
                            bool has_loads) {
  ops::RouterSums sums{.has_loads = has_loads};
  if (!has_terms) return sums;
  sums.has_balance = has_balance_loss(options);
  sums.has_z = options.moe_z_loss_coeff.value_or(0) != 0;
  if (options.moe_router_score_function == RouterScore::kSigmoid) sums.shares = ops::RouterShares::kSigmoid;
  // As in Megatron-LM and DeepSeek-V3, f ignores groups and bias; forced choices count as chosen.
  sums.counts_choices = options.moe_router_force_load_balancing ||
                        (!options.moe_router_enable_expert_bias && !options.moe_router_num_groups);
  if (options.moe_router_load_balancing_type == RouterBalancing::kSeqAuxLoss) tokens.set_sequences(sums);
  return sums;
}

RouterTerms compute_router_terms(const ops::RoutedTokens& routed, const RouterOptions& options,
                                 const MicrobatchTokens& tokens, std::string_view label, const StepBalance* step) {
  const int64_t e = options.expert_count();
  const at::ScalarType dtype = routed.weights.scalar_type();
  for (const at::Tensor& sums : {routed.counts, routed.score_sums, routed.z_sum}) {
    if (sums.defined()) as_summand(sums, tokens.group());
  }
  std::vector<at::Tensor> of_ranks;
  if (routed.counts.defined()) of_ranks = {routed.counts.flatten(), routed.score_sums.detach().flatten()};
  if (routed.z_sum.defined()) of_ranks.push_back(routed.z_sum.detach());
  // fp64: independent of the split over ranks, nearly.
  const at::Tensor all = at::cat(of_ranks).to(at::kDouble);
  tokens.group().all_reduce(all, ReduceOp::kSum, label).wait();

  RouterTerms terms;
  const auto add = [&](const at::Tensor& share) {
    terms.objective = terms.objective.defined() ? terms.objective + share : share;
  };
  if (routed.counts.defined()) {
    const int64_t q = routed.counts.size(0);
    // An empty microbatch has zero terms.
    const auto length = static_cast<double>(std::max<int64_t>(tokens.num_tokens() / std::max<int64_t>(q, 1), 1));
    const auto num_choices = static_cast<double>(options.moe_router_topk * std::max<int64_t>(q, 1));
    const double factor = static_cast<double>(e) / (num_choices * length * length);
    at::Tensor all_counts = all.narrow(0, 0, q * e).view({q, e});
    const at::Tensor all_score_sums = all.narrow(0, q * e, q * e).view({q, e});
    if (step != nullptr) {
      if (!step->mean.defined()) step->mean = step->counts.mean_with(all_counts, step->dp, label);
      // As many tokens as the microbatch has. To a rank they are as its own: its score sums are, and so its gradient.
      all_counts = as_distributed(step->mean / static_cast<double>(step->dp.size()), all_counts);
    }
    terms.balance_loss = ((all_counts * all_score_sums).sum() * factor).to(dtype);
    add((all_counts.to(dtype) * routed.score_sums).sum() * (options.moe_aux_loss_coeff * factor));
  }
  if (routed.z_sum.defined()) {
    const double factor = 1 / static_cast<double>(std::max<int64_t>(tokens.num_tokens(), 1));
    terms.z_loss = (all.select(0, all.size(0) - 1) * factor).to(dtype);
    add(routed.z_sum.sum() * (*options.moe_z_loss_coeff * factor));
  }
  return terms;
}

at::Tensor attach_objective(const at::Tensor& x, const at::Tensor& objective) {
  return is_recording({objective}) ? AttachFunction::apply(x, objective) : x;
}

}  // namespace megalith
