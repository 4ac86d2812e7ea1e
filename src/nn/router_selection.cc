#include "nn/router_selection.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

namespace megalith {
namespace {

ops::RouterWeights router_weights(const RouterOptions& options) {
  const bool is_one = options.moe_router_topk == 1;
  if (options.moe_router_load_balancing_type == RouterBalancing::kSinkhorn)
    return is_one ? ops::RouterWeights::kSigmoid : ops::RouterWeights::kSoftmax;
  if (options.moe_router_score_function == RouterScore::kSigmoid)
    return is_one ? ops::RouterWeights::kSigmoid : ops::RouterWeights::kSigmoidShare;
  return options.moe_router_pre_softmax ? ops::RouterWeights::kSoftmax : ops::RouterWeights::kChosenSoftmax;
}

}  // namespace

ops::RouterForm router_form(const RouterOptions& options) {
  ops::RouterForm form{.num_chosen = options.moe_router_topk, .weights = router_weights(options)};
  if (options.moe_router_score_function == RouterScore::kSigmoid)
    form.choice = ops::RouterChoice::kSigmoid;
  else if (options.moe_router_pre_softmax)
    form.choice = ops::RouterChoice::kSoftmax;
  form.factor = options.moe_router_topk_scaling_factor.value_or(1);
  if (!options.moe_router_num_groups) return form;
  form.num_groups = *options.moe_router_num_groups;
  form.open_groups = *options.moe_router_group_topk;
  if (options.moe_router_group_score == GroupScore::kTopSum) {
    form.group_scores = std::max<int64_t>(form.num_chosen / form.open_groups, 1);
  } else if (options.moe_router_group_score == GroupScore::kTwo) {
    form.group_scores = 2;
  }
  return form;
}

int64_t expert_capacity(int64_t num_tokens, const RouterOptions& options) {
  if (!options.has_capacity()) return 0;
  const auto num_pairs = static_cast<double>(num_tokens * options.moe_router_topk);
  return static_cast<int64_t>(
      std::ceil(num_pairs / static_cast<double>(options.expert_count()) * *options.moe_expert_capacity_factor));
}

at::Tensor within_capacity(const at::Tensor& experts, const at::Tensor& weights, int64_t num_experts,
                           int64_t capacity) {
  const at::NoGradGuard no_grad;
  if (experts.is_meta()) return at::empty(experts.sizes(), experts.options().dtype(at::kBool));
  // By preference, then stably by expert. Tokens pick an expert at most once, so pairs are in token order.
  const at::Tensor by_expert = experts.reshape({-1});
  at::Tensor sorted, order;
  if (weights.defined()) {
    const at::Tensor preference =
        std::get<1>(weights.detach().reshape({-1}).sort(/*stable=*/true, /*dim=*/0, /*descending=*/true));
    std::tie(sorted, order) = by_expert.index_select(0, preference).sort(/*stable=*/true, 0, false);
    order = preference.index_select(0, order);
  } else {
    std::tie(sorted, order) = by_expert.sort(/*stable=*/true, 0, false);
  }
  const at::Tensor first_of_expert = at::searchsorted(sorted, at::arange(num_experts, sorted.options()));
  const at::Tensor place = at::arange(sorted.size(0), sorted.options()) - first_of_expert.index_select(0, sorted);
  return at::empty(sorted.sizes(), sorted.options().dtype(at::kBool))
      .scatter_(0, order, place.lt(capacity))
      .view(experts.sizes());
}

}  // namespace megalith
