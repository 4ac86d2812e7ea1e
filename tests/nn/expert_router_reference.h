// A router as loops over tokens and experts in float64, written only from the formulas; and its gradients, by autograd
// of the formulas in their plainest form.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "core/philox.h"
#include "nn/expert_router.h"

namespace megalith::router_test {

struct RouterCase {
  std::string name;
  RouterOptions options;
  int64_t b = 3, s = 20;  // of the whole microbatch
};

struct RouterInputs {
  at::Tensor x, weight, bias;  // (T, h), (e, h), (e): T = b s in the sequences' order
  at::Tensor dx, dweights;     // arriving at x (T, h) and at the weights (T, k)
  at::Tensor row_ids;          // (b, s)
  double objective_scale = 3;
};

// In the sequences' order. NaN for terms that are off.
struct RouterOutcome {
  at::Tensor experts, weights, keep;  // (T, k)
  at::Tensor counts;                  // (e)
  int64_t capacity = 0, num_dropped = 0;
  double balance_loss = std::numeric_limits<double>::quiet_NaN(), z_loss = std::numeric_limits<double>::quiet_NaN();
  at::Tensor dx, dweight;
};

using Row = std::vector<double>;
inline constexpr uint64_t kRouterSeed = 77;
inline constexpr int64_t kRouterHidden = 7;
inline constexpr const char* kWeight = "mlp.gate.weight";
inline constexpr const char* kBias = "mlp.gate.bias";

inline RouterSite router_site() {
  return {.weight_name = kWeight, .bias_name = kBias, .hidden = kRouterHidden, .layer = 5};
}

// Indices of the count largest, the largest first; of equal ones the first.
inline std::vector<size_t> largest(const Row& values, size_t count) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] > values[b]; });
  order.resize(count);
  return order;
}

inline Row exponentials(const Row& logits) {
  Row result;
  for (const double logit : logits) result.push_back(std::exp(logit));
  return result;
}
inline Row sigmoids(const Row& logits) {
  Row result;
  for (const double logit : logits) result.push_back(1 / (1 + std::exp(-logit)));
  return result;
}
inline Row over_their_sum(Row values) {
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  for (double& value : values) value /= sum;
  return values;
}

inline std::vector<size_t> choose(const Row& logits, const RouterInputs& in, const RouterOptions& options) {
  const auto e = static_cast<size_t>(options.expert_count()), k = static_cast<size_t>(options.moe_router_topk);
  Row scores = logits;
  if (options.moe_router_score_function == RouterScore::kSigmoid) scores = sigmoids(logits);
  if (options.moe_router_pre_softmax) scores = over_their_sum(exponentials(logits));
  if (options.moe_router_enable_expert_bias)
    for (size_t i = 0; i < e; ++i) scores[i] += in.bias[static_cast<int64_t>(i)].item<double>();
  if (options.moe_router_num_groups > 0) {
    const size_t size = e / static_cast<size_t>(*options.moe_router_num_groups);
    Row of_groups;
    for (size_t first = 0; first < e; first += size) {
      Row members(scores.begin() + static_cast<ptrdiff_t>(first),
                  scores.begin() + static_cast<ptrdiff_t>(first + size));
      std::sort(members.rbegin(), members.rend());
      size_t counted = k / static_cast<size_t>(*options.moe_router_group_topk);
      if (options.moe_router_group_score == GroupScore::kMax) counted = 1;
      if (options.moe_router_group_score == GroupScore::kTwo) counted = 2;
      of_groups.push_back(std::accumulate(members.begin(), members.begin() + static_cast<ptrdiff_t>(counted), 0.0));
    }
    const auto best = largest(of_groups, static_cast<size_t>(*options.moe_router_group_topk));
    for (size_t i = 0; i < e; ++i)
      if (std::find(best.begin(), best.end(), i / size) == best.end()) scores[i] = -1e9;
  }
  return largest(scores, k);
}

inline std::vector<Row> sinkhorn_shares(const std::vector<Row>& logits) {
  std::vector<Row> cost;
  for (const Row& row : logits) cost.push_back(exponentials(row));
  const size_t n = cost.size(), e = cost[0].size();
  Row d0(n, 1), d1(e, 1);
  for (double moved = 1; moved > 1e-4;) {
    for (size_t t = 0; t < n; ++t) {
      double sum = 0;
      for (size_t i = 0; i < e; ++i) sum += d1[i] * cost[t][i];
      d0[t] = 1 / (static_cast<double>(n) * (sum + 1e-8));
    }
    moved = 0;
    for (size_t i = 0; i < e; ++i) {
      double sum = 0;
      for (size_t t = 0; t < n; ++t) sum += d0[t] * cost[t][i];
      const double next = 1 / (static_cast<double>(e) * (sum + 1e-8));
      moved += std::abs(next - d1[i]) / static_cast<double>(e);
      d1[i] = next;
    }
  }
  for (size_t t = 0; t < n; ++t)
    for (size_t i = 0; i < e; ++i) cost[t][i] *= d0[t] * d1[i];
  return cost;
}

inline Row weigh(const Row& logits, const std::vector<size_t>& experts, const RouterOptions& options) {
  Row chosen, all;
  for (const size_t i : experts) chosen.push_back(logits[i]);
  Row weights;
  if (options.moe_router_load_balancing_type == RouterBalancing::kSinkhorn
          ? options.moe_router_topk == 1
          : options.moe_router_score_function == RouterScore::kSigmoid) {
    weights = sigmoids(chosen);
    if (options.moe_router_topk > 1) weights = over_their_sum(weights);
  } else if (options.moe_router_pre_softmax || options.moe_router_load_balancing_type == RouterBalancing::kSinkhorn) {
    all = over_their_sum(exponentials(logits));
    for (const size_t i : experts) weights.push_back(all[i]);
  } else {
    weights = over_their_sum(exponentials(chosen));
  }
  for (double& weight : weights) weight *= options.moe_router_topk_scaling_factor.value_or(1);
  return weights;
}

// The gradients of weights . dweights + x . dx + scale (the objectives), by autograd; `frequencies` (q, e) are
// constant.
inline void differentiate(const RouterCase& test, const RouterInputs& in, const at::Tensor& noise,
                          const at::Tensor& frequencies, RouterOutcome& out) {
  const RouterOptions& options = test.options;
  const at::Tensor x = in.x.clone().requires_grad_(true), w = in.weight.clone().requires_grad_(true);
  const double cap = options.router_logit_softcapping.value_or(0);
  const at::Tensor product = (x * noise).mm(w.t()), logits = cap == 0 ? product : cap * at::tanh(product / cap);
  const at::Tensor exp = logits.exp(), sigmoid = 1 / (1 + (-logits).exp());
  const at::Tensor softmax = exp / exp.sum(1, true);
  at::Tensor weights;
  if (options.moe_router_load_balancing_type == RouterBalancing::kSinkhorn) {
    weights = (options.moe_router_topk == 1 ? sigmoid : softmax).gather(1, out.experts);
  } else if (options.moe_router_score_function == RouterScore::kSigmoid) {
    weights = sigmoid.gather(1, out.experts);
    if (options.moe_router_topk > 1) weights = weights / weights.sum(1, true);
  } else {
    weights = exp.gather(1, out.experts);
    weights = weights / (options.moe_router_pre_softmax ? exp : weights).sum(1, true);
  }
  at::Tensor sum =
      (weights * options.moe_router_topk_scaling_factor.value_or(1) * in.dweights).sum() + (x * in.dx).sum();
  if (frequencies.defined()) {
    const at::Tensor scores =
        options.moe_router_score_function == RouterScore::kSigmoid ? sigmoid / sigmoid.sum(1, true) : softmax;
    const int64_t q = frequencies.size(0), length = x.size(0) / q;
    const at::Tensor probabilities = scores.view({q, length, -1}).sum(1);
    const double factor =
        static_cast<double>(options.expert_count()) / static_cast<double>(options.moe_router_topk * length * length);
    const at::Tensor balance = (frequencies * probabilities).sum(1).mean() * factor;
    EXPECT_NEAR(balance.item<double>(), out.balance_loss, 1e-12) << test.name;
    sum = sum + in.objective_scale * options.moe_aux_loss_coeff * balance;
  }
  const double z_loss_coeff = options.moe_z_loss_coeff.value_or(0);
  if (z_loss_coeff != 0) {
    sum = sum + in.objective_scale * z_loss_coeff * exp.sum(1).log().square().mean();
  }
  const auto gradients = torch::autograd::grad({sum}, {x, w});
  out.dx = gradients[0];
  out.dweight = gradients[1];
}

inline RouterOutcome route_in_loops(const RouterCase& test, const RouterInputs& in) {
  const RouterOptions& options = test.options;
  const int64_t num_tokens = in.x.size(0), e = options.expert_count(), k = options.moe_router_topk;
  at::Tensor noise = at::ones_like(in.x);
  const uint64_t key = make_philox_key(kRouterSeed, "jitter." + router_site().weight_name);
  const double jitter_eps = options.moe_input_jitter_eps.value_or(0);
  for (int64_t t = 0; t < num_tokens && jitter_eps != 0; ++t) {
    const auto row = static_cast<uint64_t>(in.row_ids.view({-1})[t].item<int64_t>());
    for (int64_t c = 0; c < kRouterHidden; ++c) {
      noise[t][c] = 1 + jitter_eps * (2 * uniform_at(key, static_cast<uint64_t>(c), row) - 1);
    }
  }
  std::vector<Row> logits(static_cast<size_t>(num_tokens), Row(static_cast<size_t>(e)));
  for (int64_t t = 0; t < num_tokens; ++t)
    for (int64_t i = 0; i < e; ++i)
      for (int64_t c = 0; c < kRouterHidden; ++c)
        logits[static_cast<size_t>(t)][static_cast<size_t>(i)] +=
            in.x[t][c].item<double>() * noise[t][c].item<double>() * in.weight[i][c].item<double>();
  const double cap = options.router_logit_softcapping.value_or(0);
  for (Row& row : logits)
    for (double& logit : row) logit = cap == 0 ? logit : cap * std::tanh(logit / cap);

  RouterOutcome out;
  out.experts = at::zeros({num_tokens, k}, at::kLong);
  out.weights = at::zeros({num_tokens, k}, at::kDouble);
  out.keep = at::ones({num_tokens, k}, at::kBool);
  out.counts = at::zeros({e}, at::kLong);
  std::vector<Row> shares;
  if (options.moe_router_load_balancing_type == RouterBalancing::kSinkhorn) shares = sinkhorn_shares(logits);
  const bool is_by_sequence = options.moe_router_load_balancing_type == RouterBalancing::kSeqAuxLoss;
  const int64_t q = is_by_sequence ? test.b : 1, length = num_tokens / q;
  const at::Tensor frequencies = at::zeros({q, e}, at::kDouble);
  for (int64_t t = 0; t < num_tokens; ++t) {
    const Row& row = logits[static_cast<size_t>(t)];
    std::vector<size_t> experts = choose(row, in, options);
    // Groups and the bias have no say in what the balance counts.
    std::vector<size_t> counted = largest(row, static_cast<size_t>(k));
    if (!shares.empty()) experts = largest(shares[static_cast<size_t>(t)], static_cast<size_t>(k));
    if (options.moe_router_force_load_balancing) {
      for (int64_t j = 0; j < k; ++j) experts[static_cast<size_t>(j)] = static_cast<size_t>((t * k + j) % e);
      counted = experts;
    }
    const Row weights = weigh(row, experts, options);
    for (int64_t j = 0; j < k; ++j) {
      const auto expert = static_cast<int64_t>(experts[static_cast<size_t>(j)]);
      out.experts[t][j] = expert;
      out.weights[t][j] = weights[static_cast<size_t>(j)];
      out.counts[expert] += 1;
      frequencies[t / length][static_cast<int64_t>(counted[static_cast<size_t>(j)])] += 1;
    }
  }
  if (options.moe_expert_capacity_factor.value_or(-1) > 0) {
    out.capacity = static_cast<int64_t>(
        std::ceil(static_cast<double>(num_tokens * k) / static_cast<double>(e) * *options.moe_expert_capacity_factor));
    for (int64_t i = 0; i < e; ++i) {
      std::vector<std::pair<int64_t, int64_t>> pairs;
      Row preference;
      for (int64_t t = 0; t < num_tokens; ++t)
        for (int64_t j = 0; j < k; ++j) {
          if (out.experts[t][j].item<int64_t>() != i) continue;
          pairs.emplace_back(t, j);
          // Position by position over the sequences: token t is the one at t % s of sequence t / s.
          const int64_t s = num_tokens / test.b, order = t % s * test.b + t / s;
          preference.push_back(options.moe_token_drop_policy == DropPolicy::kPosition
                                   ? -static_cast<double>(order)
                                   : out.weights[t][j].item<double>());
        }
      const auto order = largest(preference, pairs.size());
      for (size_t place = static_cast<size_t>(out.capacity); place < order.size(); ++place) {
        out.keep[pairs[order[place]].first][pairs[order[place]].second] = false;
        ++out.num_dropped;
      }
    }
  }
  const bool is_balanced = options.moe_router_load_balancing_type == RouterBalancing::kAuxLoss || is_by_sequence;
  if (is_balanced) {
    out.balance_loss = 0;
    for (int64_t t = 0; t < num_tokens; ++t) {
      const Row& row = logits[static_cast<size_t>(t)];
      const Row scores = over_their_sum(options.moe_router_score_function == RouterScore::kSigmoid ? sigmoids(row)
                                                                                                   : exponentials(row));
      for (int64_t i = 0; i < e; ++i)
        out.balance_loss += frequencies[t / length][i].item<double>() * scores[static_cast<size_t>(i)] *
                            static_cast<double>(e) / static_cast<double>(k * length * length * q);
    }
  }
  if (options.moe_z_loss_coeff.value_or(0) != 0) {
    out.z_loss = 0;
    for (const Row& row : logits) {
      const Row all = exponentials(row);
      out.z_loss +=
          std::pow(std::log(std::accumulate(all.begin(), all.end(), 0.0)), 2) / static_cast<double>(num_tokens);
    }
  }
  differentiate(test, in, noise, is_balanced ? frequencies : at::Tensor(), out);
  return out;
}

}  // namespace megalith::router_test
