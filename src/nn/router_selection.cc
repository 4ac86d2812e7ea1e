// See router_selection.h. Plain ATen: the tensors are (n, e), small beside the activations.
#include "nn/router_selection.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"

namespace megalith {
namespace {

constexpr double kSumEpsilon = 1e-20;

// Experts outside the moe_router_group_topk best groups at minus infinity.
at::Tensor without_other_groups(const at::Tensor& scores, const RouterOptions& options) {
  const int64_t n = scores.size(0), num_groups = *options.moe_router_num_groups, open = *options.moe_router_group_topk;
  const at::Tensor grouped = scores.view({n, num_groups, div_exact(options.expert_count(), num_groups)});
  const int64_t counted = std::max<int64_t>(options.moe_router_topk / open, 1);
  const at::Tensor group_scores = options.moe_router_group_score == GroupScore::kMax
                                      ? grouped.amax(2)
                                      : std::get<0>(at::topk(grouped, counted, 2)).sum(2);
  const at::Tensor best = std::get<1>(at::topk(group_scores, open, 1));
  const at::Tensor is_out = at::ones_like(group_scores, at::kBool).scatter_(1, best, false);
  return grouped.masked_fill(is_out.unsqueeze(2), -std::numeric_limits<double>::infinity()).view(scores.sizes());
}

}  // namespace

at::Tensor normalised_scores(const at::Tensor& logits, RouterScore score) {
  if (score == RouterScore::kSoftmax) return at::softmax(logits, 1);
  const at::Tensor scores = at::sigmoid(logits);
  return scores / (scores.sum(1, /*keepdim=*/true) + kSumEpsilon);
}

at::Tensor select_experts(const at::Tensor& logits, const at::Tensor& bias, const RouterOptions& options) {
  const at::NoGradGuard no_grad;
  at::Tensor scores = logits.detach();
  if (options.moe_router_score_function == RouterScore::kSigmoid)
    scores = at::sigmoid(scores);
  else if (options.moe_router_pre_softmax)
    scores = at::softmax(scores, 1);
  if (bias.defined()) scores = scores + bias;
  if (options.moe_router_num_groups) scores = without_other_groups(scores, options);
  return std::get<1>(at::topk(scores, options.moe_router_topk, 1));
}

at::Tensor weigh_experts(const at::Tensor& logits, const at::Tensor& experts, const RouterOptions& options) {
  at::Tensor weights;
  if (options.moe_router_load_balancing_type == RouterBalancing::kSinkhorn) {
    weights = options.moe_router_topk == 1 ? at::sigmoid(logits.gather(1, experts))
                                           : at::softmax(logits, 1).gather(1, experts);
  } else if (options.moe_router_score_function == RouterScore::kSigmoid) {
    weights = at::sigmoid(logits.gather(1, experts));
    if (options.moe_router_topk > 1) weights = weights / (weights.sum(1, /*keepdim=*/true) + kSumEpsilon);
  } else if (options.moe_router_pre_softmax) {
    weights = at::softmax(logits, 1).gather(1, experts);
  } else {
    weights = at::softmax(logits.gather(1, experts), 1);
  }
  const double factor = options.moe_router_topk_scaling_factor.value_or(1);
  return factor == 1 ? weights : weights * factor;
}

at::Tensor sinkhorn(const at::Tensor& logits) {
  constexpr double kTolerance = 1e-4, kEpsilon = 1e-8;
  // The factors of experts that hardly anybody wants are large, so that mere rounding could keep them moving.
  constexpr int kMaxIterations = 1000;
  const at::NoGradGuard no_grad;
  // In fp64 also for overflow's sake: exp of a logit of 89 is none of fp32's numbers.
  const at::Tensor cost = logits.detach().to(at::kDouble).exp();
  if (cost.numel() == 0 || cost.is_meta()) return cost;
  const auto num_tokens = static_cast<double>(cost.size(0)), num_experts = static_cast<double>(cost.size(1));
  at::Tensor of_tokens, of_experts = at::ones({cost.size(1)}, cost.options());
  for (int i = 0; i < kMaxIterations; ++i) {
    of_tokens = (at::mv(cost, of_experts) + kEpsilon).mul_(num_tokens).reciprocal_();
    const at::Tensor next = (at::mv(cost.t(), of_tokens) + kEpsilon).mul_(num_experts).reciprocal_();
    const double moved = (next - of_experts).abs_().mean().item<double>();
    of_experts = next;
    if (!(moved > kTolerance)) break;
  }
  return cost * of_experts * of_tokens.unsqueeze(1);
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
  // Pairs in the order of preference, then, which stable sorting keeps, by expert. An expert is chosen once by a token,
  // so the order of pairs is that of tokens.
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
