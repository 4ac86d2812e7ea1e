// Does not synchronise. The gradient has ATen's autograd's operators in the same order: the same roundings.
#include <ATen/ATen.h>

#include <limits>

#include "core/error.h"
#include "ops/router/router.h"

namespace megalith::ops {
namespace reference {
namespace {

at::Tensor find_largest(const at::Tensor& scores, int64_t k) {
  return std::get<1>(at::sort(scores, /*stable=*/true, /*dim=*/1, /*descending=*/true)).narrow(1, 0, k);
}

// scores, minus infinity outside the best groups.
at::Tensor without_other_groups(const at::Tensor& scores, const RouterForm& form, decltype(&find_largest) largest) {
  const int64_t n = scores.size(0), groups = form.num_groups, size = div_exact(scores.size(1), groups);
  const at::Tensor of_groups = scores.reshape({n * groups, size});
  const at::Tensor group_scores = of_groups.gather(1, largest(of_groups, form.group_scores)).sum(1).view({n, groups});
  const at::Tensor best = largest(group_scores, form.open_groups);
  const at::Tensor is_out = at::ones_like(group_scores, at::kBool).scatter_(1, best, false);
  return scores.view({n, groups, size})
      .masked_fill(is_out.unsqueeze(2), -std::numeric_limits<double>::infinity())
      .view(scores.sizes());
}

at::Tensor sum_of_row(const at::Tensor& x) { return x.sum(1, /*keepdim=*/true) + kRouterEpsilon; }

at::Tensor shares_of(const at::Tensor& logits, RouterShares shares) {
  if (shares == RouterShares::kSoftmax) return at::softmax(logits, 1);
  const at::Tensor scores = at::sigmoid(logits);
  return scores / sum_of_row(scores);
}

at::Tensor weights_of(const at::Tensor& logits, const at::Tensor& experts, const RouterForm& form) {
  switch (form.weights) {
    case RouterWeights::kChosenSoftmax:
      return at::softmax(logits.gather(1, experts), 1);
    case RouterWeights::kSoftmax:
      return at::softmax(logits, 1).gather(1, experts);
    case RouterWeights::kSigmoid:
      return at::sigmoid(logits.gather(1, experts));
    case RouterWeights::kSigmoidShare: {
      const at::Tensor scores = at::sigmoid(logits.gather(1, experts));
      return scores / sum_of_row(scores);
    }
  }
  return {};
}

// x (t, e) -> (q, e)
at::Tensor sum_of_sequences(const at::Tensor& x, const RouterSums& sums) {
  if (sums.num_sequences == 0) return x.sum(0, /*keepdim=*/true);
  const int64_t after = sums.num_sequences * sums.sequence_length - sums.first - x.size(0);
  const at::Tensor all = sums.first == 0 && after == 0 ? x : at::constant_pad_nd(x, {0, 0, sums.first, after});
  return all.reshape({sums.num_sequences, sums.sequence_length, x.size(1)}).sum(1);
}

// (q, e) -> (t, e): each token gets its sequence's.
at::Tensor of_sequences(const at::Tensor& x, const RouterSums& sums, int64_t num_tokens) {
  if (sums.num_sequences == 0) return x.expand({num_tokens, x.size(1)});
  return x.unsqueeze(1)
      .expand({sums.num_sequences, sums.sequence_length, x.size(1)})
      .reshape({sums.num_sequences * sums.sequence_length, x.size(1)})
      .narrow(0, sums.first, num_tokens);
}

at::Tensor softmax_backward(const at::Tensor& gradient, const at::Tensor& y) {
  return at::_softmax_backward_data(gradient, y, 1, y.scalar_type());
}

// The gradient of scores / sum_of_row(scores), for sigmoids.
at::Tensor sigmoid_share_backward(const at::Tensor& gradient, const at::Tensor& scores) {
  const at::Tensor sum = sum_of_row(scores);
  const at::Tensor of_sum = (-gradient * ((scores / sum) / sum)).sum(1, /*keepdim=*/true);
  return at::sigmoid_backward(gradient / sum + of_sum, scores);
}

at::Tensor shares_backward(const at::Tensor& gradient, const at::Tensor& logits, RouterShares shares) {
  if (shares == RouterShares::kSoftmax) return softmax_backward(gradient, at::softmax(logits, 1));
  return sigmoid_share_backward(gradient, at::sigmoid(logits));
}

at::Tensor z_backward(const at::Tensor& gradient, const at::Tensor& logits) {
  const at::Tensor lse = logits.logsumexp(1);
  return (gradient * (lse * 2)).unsqueeze(1) * (logits - lse.unsqueeze(1)).exp();
}

at::Tensor weights_backward(const at::Tensor& gradient, const at::Tensor& logits, const at::Tensor& experts,
                            RouterWeights weights) {
  const auto to_all = [&](const at::Tensor& of_chosen) {
    return at::zeros_like(logits).scatter_add_(1, experts, of_chosen);
  };
  if (weights == RouterWeights::kSoftmax) return softmax_backward(to_all(gradient), at::softmax(logits, 1));
  const at::Tensor chosen = logits.gather(1, experts);
  if (weights == RouterWeights::kChosenSoftmax) return to_all(softmax_backward(gradient, at::softmax(chosen, 1)));
  const at::Tensor scores = at::sigmoid(chosen);
  return to_all(weights == RouterWeights::kSigmoid ? at::sigmoid_backward(gradient, scores)
                                                   : sigmoid_share_backward(gradient, scores));
}

RoutedTokens route_tokens(const at::Tensor& logits, const at::Tensor& bias, const at::Tensor& experts,
                          const RouterForm& form, const RouterSums& sums) {
  return compose_routing(logits, bias, experts, form, sums, find_largest);
}

at::Tensor route_tokens_backward(const at::Tensor& logits, const at::Tensor& experts, const RoutedGradients& gradients,
                                 const RouterForm& form, const RouterSums& sums) {
  at::Tensor sum;
  const auto add = [&](const at::Tensor& part) { sum = sum.defined() ? sum + part : part; };
  if (gradients.z_sum.defined()) add(z_backward(gradients.z_sum, logits));
  if (gradients.score_sums.defined()) {
    add(shares_backward(of_sequences(gradients.score_sums, sums, logits.size(0)), logits, sums.shares));
  }
  if (gradients.weights.defined()) {
    add(weights_backward(form.factor == 1 ? gradients.weights : gradients.weights * form.factor, logits, experts,
                         form.weights));
  }
  return sum.defined() ? sum : at::zeros_like(logits);
}

}  // namespace
}  // namespace reference

RoutedTokens compose_routing(const at::Tensor& logits, const at::Tensor& bias, const at::Tensor& experts,
                             const RouterForm& form, const RouterSums& sums,
                             at::Tensor (*find_largest)(const at::Tensor& scores, int64_t k)) {
  using namespace reference;
  const auto ones_at = [&](const at::Tensor& chosen, at::ScalarType dtype) {
    return at::zeros(logits.sizes(), logits.options().dtype(dtype)).scatter_(1, chosen, 1);
  };
  RoutedTokens routed{.experts = experts};
  if (!experts.defined()) {
    at::Tensor scores = logits;
    if (form.choice == RouterChoice::kSigmoid)
      scores = at::sigmoid(scores);
    else if (form.choice == RouterChoice::kSoftmax)
      scores = at::softmax(scores, 1);
    if (bias.defined()) scores = scores + bias;
    if (form.num_groups > 0) scores = without_other_groups(scores, form, find_largest);
    routed.experts = find_largest(scores, form.num_chosen).contiguous();
  }
  routed.weights = weights_of(logits, routed.experts, form);
  if (form.factor != 1) routed.weights = routed.weights * form.factor;
  if (sums.has_loads) routed.loads = ones_at(routed.experts, at::kBool).sum(0);
  if (sums.has_balance) {
    const at::Tensor shares = shares_of(logits, sums.shares);
    const at::Tensor counted = sums.counts_choices ? routed.experts : find_largest(shares, form.num_chosen);
    routed.counts = sum_of_sequences(ones_at(counted, logits.scalar_type()), sums);
    routed.score_sums = sum_of_sequences(shares, sums);
  }
  if (sums.has_z) routed.z_sum = logits.logsumexp(1).square().sum().view({1});
  return routed;
}

constexpr RouterTable kRouterReference{.forward = reference::route_tokens,
                                       .backward = reference::route_tokens_backward};

}  // namespace megalith::ops
