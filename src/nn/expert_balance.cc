// See expert_balance.h.
#include "nn/expert_balance.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "nn/function.h"
#include "nn/microbatch_tokens.h"
#include "nn/router_selection.h"

namespace megalith {
namespace {

// The experts that f counts for each token: those of its k largest scores, whatever groups and a bias made of them, as
// Megatron-LM and DeepSeek-V3 have it. A forced choice counts as it is.
at::Tensor counted_experts(const at::Tensor& scores, const at::Tensor& experts, const RouterOptions& options) {
  if (options.moe_router_force_load_balancing ||
      (!options.moe_router_enable_expert_bias && !options.moe_router_num_groups))
    return experts;
  return std::get<1>(at::topk(scores.detach(), options.moe_router_topk, 1));
}

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

bool has_balance_loss(const RouterOptions& options) {
  const RouterBalancing balancing = options.moe_router_load_balancing_type;
  return options.moe_aux_loss_coeff != 0 &&
         (balancing == RouterBalancing::kAuxLoss || balancing == RouterBalancing::kSeqAuxLoss);
}

bool has_router_terms(const RouterOptions& options) {
  return has_balance_loss(options) || options.moe_z_loss_coeff.value_or(0) != 0;
}

namespace {

// LibTorch has no logsumexp for the meta device; there a softmax keeps as much.
at::Tensor log_sum_exp(const at::Tensor& logits) {
  return logits.is_meta() ? at::softmax(logits, 1).sum(1) : logits.logsumexp(1);
}

}  // namespace

RouterTerms compute_router_terms(const at::Tensor& logits, const at::Tensor& experts, const RouterOptions& options,
                                 const MicrobatchTokens& tokens, std::string_view label) {
  const int64_t e = options.expert_count();
  const double z_loss_coeff = options.moe_z_loss_coeff.value_or(0);
  at::Tensor counts, score_sums, z_sum;  // (q, e) twice, over q sequences or over all tokens (q = 1); (1)
  std::vector<at::Tensor> of_ranks;
  if (has_balance_loss(options)) {
    const auto sum = [&](const at::Tensor& x) {
      const bool is_by_sequence = options.moe_router_load_balancing_type == RouterBalancing::kSeqAuxLoss;
      return is_by_sequence ? tokens.sum_by_sequence(x) : x.sum(0, /*keepdim=*/true);
    };
    const at::Tensor scores = normalised_scores(logits, options.moe_router_score_function);
    counts = sum(at::zeros_like(scores).scatter_(1, counted_experts(scores, experts, options), 1));
    score_sums = sum(scores);
    of_ranks = {counts.flatten(), score_sums.detach().flatten()};
  }
  if (z_loss_coeff != 0) {
    z_sum = log_sum_exp(logits).square().sum().view({1});
    of_ranks.push_back(z_sum.detach());
  }
  // In fp64, so that the parts in which ranks hold the tokens hardly show in the sums.
  const at::Tensor all = at::cat(of_ranks).to(at::kDouble);
  tokens.group().all_reduce(all, ReduceOp::kSum, label).wait();

  RouterTerms terms;
  const auto add = [&](const at::Tensor& share) {
    terms.objective = terms.objective.defined() ? terms.objective + share : share;
  };
  if (has_balance_loss(options)) {
    const int64_t q = counts.size(0);
    // An empty microbatch has terms of zero.
    const auto length = static_cast<double>(std::max<int64_t>(tokens.num_tokens() / std::max<int64_t>(q, 1), 1));
    const auto num_choices = static_cast<double>(options.moe_router_topk * std::max<int64_t>(q, 1));
    const double factor = static_cast<double>(e) / (num_choices * length * length);
    const at::Tensor all_counts = all.narrow(0, 0, q * e).view({q, e}),
                     all_score_sums = all.narrow(0, q * e, q * e).view({q, e});
    terms.balance_loss = ((all_counts * all_score_sums).sum() * factor).to(logits.scalar_type());
    add((all_counts.to(logits.scalar_type()) * score_sums).sum() * (options.moe_aux_loss_coeff * factor));
  }
  if (z_sum.defined()) {
    const double factor = 1 / static_cast<double>(std::max<int64_t>(tokens.num_tokens(), 1));
    terms.z_loss = (all.select(0, all.size(0) - 1) * factor).to(logits.scalar_type());
    add(z_sum.sum() * (z_loss_coeff * factor));
  }
  return terms;
}

at::Tensor attach_objective(const at::Tensor& x, const at::Tensor& objective) {
  return is_recording({objective}) ? AttachFunction::apply(x, objective) : x;
}

}  // namespace megalith
