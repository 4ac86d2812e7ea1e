// The router's GPU kernels under emulation: choices as a stable sort makes them, weights, sums and gradients against
// loops in double, equal to the bit in every order.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "gpu_kernels/expect.h"
#include "ops/router/kernel.h"

namespace megalith::ops {
namespace {

using testing::Array;
using testing::Expected;
using Numbers = std::vector<int64_t>;
using Row = std::vector<double>;

struct RouterCase {
  int64_t tokens, experts;
  RouterForm form;
  RouterSums sums = {};
  bool has_bias = false, is_given = false;
  bool has_ties = false;  // logits are a few different numbers
  Dtype dtype = Dtype::kFloat32;

  std::string what() const {
    return std::to_string(tokens) + " tokens, " + std::to_string(form.num_chosen) + " of " + std::to_string(experts) +
           " experts, choice " + std::to_string(static_cast<int>(form.choice)) + ", weights " +
           std::to_string(static_cast<int>(form.weights)) + ", " + std::to_string(form.num_groups) + " groups, " +
           std::to_string(sums.num_sequences) + " sequences, " + testing::name_of(dtype) + (has_ties ? ", ties" : "");
  }
};

struct RouterInputs {
  Array logits, bias, dweights, dscore_sums, dz_sum;
  Numbers given;

  explicit RouterInputs(const RouterCase& c)
      : logits(c.dtype, c.tokens * c.experts),
        bias(c.dtype, c.experts),
        dweights(c.dtype, c.tokens * c.form.num_chosen),
        dscore_sums(c.dtype, c.sums.balance_rows() * c.experts),
        dz_sum(c.dtype, 1) {
    std::mt19937 generator(static_cast<unsigned>(c.tokens * 100 + c.experts));
    logits.draw(generator, 0, 2);
    for (Array* array : {&bias, &dweights, &dscore_sums, &dz_sum}) array->draw(generator, 0, 1);
    const double levels[] = {0.25, 0.5, 1, 1.5};
    for (int64_t i = 0; c.has_ties && i < logits.count(); ++i) logits.set(i, levels[generator() % 4]);
    for (int64_t i = 0; c.has_ties && i < bias.count(); ++i) bias.set(i, static_cast<double>(generator() % 2));
    for (int64_t i = 0; c.is_given && i < c.tokens * c.form.num_chosen; ++i) given.push_back((i + 1) % c.experts);
  }
};

// The numbers of the largest, the largest first; of equal ones the first.
std::vector<size_t> largest(const Row& values, int64_t count) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return values[a] > values[b] || (std::isnan(values[a]) && !std::isnan(values[b]));
  });
  order.resize(static_cast<size_t>(count));
  return order;
}
double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double sum_of(const Row& values) { return std::accumulate(values.begin(), values.end(), 0.0); }
Row softmax(const Row& logits) {
  const double most = *std::max_element(logits.begin(), logits.end());
  Row result;
  for (const double logit : logits) result.push_back(std::exp(logit - most));
  const double sum = sum_of(result);
  for (double& value : result) value /= sum;
  return result;
}

std::vector<size_t> choose(const RouterCase& c, const RouterInputs& in, const Row& logits) {
  Row scores = c.form.choice == RouterChoice::kSoftmax ? softmax(logits) : logits;
  for (double& score : scores) score = c.form.choice == RouterChoice::kSigmoid ? sigmoid(score) : score;
  for (size_t i = 0; c.has_bias && i < scores.size(); ++i) scores[i] += in.bias[static_cast<int64_t>(i)];
  if (c.form.num_groups > 0) {
    const auto size = scores.size() / static_cast<size_t>(c.form.num_groups);
    Row of_groups;
    for (size_t first = 0; first < scores.size(); first += size) {
      const Row group(scores.begin() + static_cast<int64_t>(first),
                      scores.begin() + static_cast<int64_t>(first + size));
      double sum = 0;
      for (const size_t i : largest(group, c.form.group_scores)) sum += group[i];
      of_groups.push_back(sum);
    }
    const auto best = largest(of_groups, c.form.open_groups);
    for (size_t i = 0; i < scores.size(); ++i) {
      if (std::find(best.begin(), best.end(), i / size) == best.end()) scores[i] = -INFINITY;
    }
  }
  return largest(scores, c.form.num_chosen);
}

// shares[i] / d logits: the gradient of sum_i gradient[i] shares[i], shares being those that `is_softmax` says.
Row shares_backward(const Row& gradient, const Row& logits, bool is_softmax) {
  Row scores = is_softmax ? softmax(logits) : logits, result(logits.size());
  for (double& score : scores) score = is_softmax ? score : sigmoid(score);
  const double sum = sum_of(scores) + (is_softmax ? 0 : kRouterEpsilon);
  double dot = 0;
  for (size_t i = 0; i < scores.size(); ++i) dot += gradient[i] * scores[i] / sum;
  for (size_t i = 0; i < scores.size(); ++i) {
    result[i] = is_softmax ? scores[i] * (gradient[i] - dot) : (gradient[i] - dot) / sum * scores[i] * (1 - scores[i]);
  }
  return result;
}

struct RouterAnswer {
  Numbers experts, loads;
  Row weights, counts, score_sums, dlogits;
  double z_sum = 0;
};

RouterAnswer route_in_loops(const RouterCase& c, const RouterInputs& in) {
  const auto e = static_cast<size_t>(c.experts), k = static_cast<size_t>(c.form.num_chosen);
  const auto q = static_cast<size_t>(c.sums.balance_rows());
  RouterAnswer out;
  out.loads.resize(e);
  out.counts.resize(q * e);
  out.score_sums.resize(q * e);
  for (int64_t token = 0; token < c.tokens; ++token) {
    Row logits;
    for (size_t i = 0; i < e; ++i) logits.push_back(in.logits[token * c.experts + static_cast<int64_t>(i)]);
    std::vector<size_t> experts = c.is_given ? std::vector<size_t>() : choose(c, in, logits);
    for (size_t j = 0; c.is_given && j < k; ++j) {
      experts.push_back(static_cast<size_t>(in.given[static_cast<size_t>(token) * k + j]));
    }
    Row chosen, dweights, weights;
    for (size_t j = 0; j < k; ++j) {
      chosen.push_back(logits[experts[j]]);
      dweights.push_back(in.dweights[token * c.form.num_chosen + static_cast<int64_t>(j)] * c.form.factor);
      out.experts.push_back(static_cast<int64_t>(experts[j]));
      ++out.loads[experts[j]];
    }
    // The weights, and what their gradients give.
    Row dlogits(e, 0.0), of_chosen;
    if (c.form.weights == RouterWeights::kSoftmax) {
      Row all(e, 0.0);
      for (size_t j = 0; j < k; ++j) {
        weights.push_back(softmax(logits)[experts[j]]);
        all[experts[j]] = dweights[j];
      }
      dlogits = shares_backward(all, logits, true);
    } else if (c.form.weights == RouterWeights::kChosenSoftmax) {
      weights = softmax(chosen);
      of_chosen = shares_backward(dweights, chosen, true);
    } else {
      for (const double logit : chosen) weights.push_back(sigmoid(logit));
      const double sum = c.form.weights == RouterWeights::kSigmoid ? 1 : sum_of(weights) + kRouterEpsilon;
      for (size_t j = 0; j < k; ++j) of_chosen.push_back(dweights[j] * weights[j] * (1 - weights[j]));
      if (c.form.weights == RouterWeights::kSigmoidShare) of_chosen = shares_backward(dweights, chosen, false);
      for (double& weight : weights) weight /= sum;
    }
    for (size_t j = 0; j < of_chosen.size(); ++j) dlogits[experts[j]] += of_chosen[j];
    for (const double weight : weights) out.weights.push_back(weight * c.form.factor);

    // The sums, and what their gradients give.
    const bool is_softmax = c.sums.shares == RouterShares::kSoftmax;
    const auto sequence =
        static_cast<size_t>(c.sums.num_sequences == 0 ? 0 : (c.sums.first + token) / c.sums.sequence_length);
    Row shares = is_softmax ? softmax(logits) : logits, dshares;
    for (double& share : shares) share = is_softmax ? share : sigmoid(share);
    const double sum = is_softmax ? 1 : sum_of(shares) + kRouterEpsilon;
    for (size_t i = 0; i < e; ++i) {
      out.score_sums[sequence * e + i] += shares[i] / sum;
      dshares.push_back(in.dscore_sums[static_cast<int64_t>(sequence * e + i)]);
    }
    for (const size_t i : c.sums.counts_choices ? experts : largest(shares, c.form.num_chosen)) {
      out.counts[sequence * e + i] += 1;
    }
    Row exponentials;
    for (const double logit : logits) exponentials.push_back(std::exp(logit));
    const double lse = std::log(sum_of(exponentials));
    out.z_sum += lse * lse;
    const Row of_shares = shares_backward(dshares, logits, is_softmax);
    for (size_t i = 0; i < e; ++i) {
      if (c.sums.has_balance) dlogits[i] += of_shares[i];
      if (c.sums.has_z) dlogits[i] += in.dz_sum[0] * 2 * lse * softmax(logits)[i];
      out.dlogits.push_back(dlogits[i]);
    }
  }
  return out;
}

// {weights, dlogits, counts, score_sums, z_sum}; the integers are compared here.
std::vector<Array> route(const RouterCase& c, const RouterInputs& in, const RouterAnswer& expected) {
  const int64_t rows = c.sums.balance_rows();
  std::vector<Array> results;
  results.emplace_back(c.dtype, c.tokens * c.form.num_chosen);
  results.emplace_back(c.dtype, c.tokens * c.experts);
  results.emplace_back(c.dtype, c.sums.has_balance ? rows * c.experts : 0);
  results.emplace_back(c.dtype, c.sums.has_balance ? rows * c.experts : 0);
  results.emplace_back(c.dtype, c.sums.has_z ? 1 : 0);
  Array parts(c.dtype, gpu::router_blocks_of_sequence(c.sums, c.tokens) * rows * gpu::router_columns(c.experts));
  Numbers experts(expected.experts.size(), -77), loads(expected.loads.size(), -77);
  const bool has_sums = c.sums.has_balance || c.sums.has_loads || c.sums.has_z;
  gpu::route_tokens({.dtype = c.dtype,
                     .tokens = c.tokens,
                     .num_experts = c.experts,
                     .form = c.form,
                     .sums = c.sums,
                     .logits = in.logits.data(),
                     .bias = c.has_bias ? in.bias.data() : nullptr,
                     .given = c.is_given ? in.given.data() : nullptr,
                     .experts = c.is_given ? nullptr : experts.data(),
                     .weights = results[0].data(),
                     .loads = c.sums.has_loads ? loads.data() : nullptr,
                     .counts = results[2].data(),
                     .score_sums = results[3].data(),
                     .z_sum = results[4].data(),
                     .parts = has_sums ? parts.data() : nullptr},
                    nullptr);
  if (!c.is_given) {
    EXPECT_EQ(experts, expected.experts) << "the choice is another one instead of the sort's";
  }
  if (c.sums.has_loads) {
    EXPECT_EQ(loads, expected.loads) << "loads";
  }
  gpu::route_tokens_backward({.dtype = c.dtype,
                              .tokens = c.tokens,
                              .num_experts = c.experts,
                              .form = c.form,
                              .sums = c.sums,
                              .logits = in.logits.data(),
                              .experts = c.is_given ? in.given.data() : expected.experts.data(),
                              .dweights = in.dweights.data(),
                              .dscore_sums = c.sums.has_balance ? in.dscore_sums.data() : nullptr,
                              .dz_sum = c.sums.has_z ? in.dz_sum.data() : nullptr,
                              .dlogits = results[1].data()},
                             nullptr);
  return results;
}

void try_route(const RouterCase& c) {
  const RouterInputs in(c);
  const RouterAnswer expected = route_in_loops(c, in);
  // Exponentials of logits up to 8 are off by as many units as these; sums of up to e terms, in another order, by less.
  const double unit = 40 * testing::unit_of(c.dtype);
  const auto near = [&](const Array& found, const Row& row, double terms, const char* what) {
    std::vector<Expected> bounds;
    for (const double value : row) bounds.push_back({value, unit * (std::abs(value) + terms)});
    testing::expect_near(found, bounds, what);
  };
  testing::in_every_order(
      c.what(), [&] { return route(c, in, expected); },
      [&](const std::vector<Array>& results) {
        near(results[0], expected.weights, 0, "weights");
        // Differences of terms of up to some units, those of the balance times its gradients.
        near(results[1], expected.dlogits, 4 * c.form.factor, "dlogits");
        if (c.sums.has_balance) near(results[2], expected.counts, 0, "counts");
        if (c.sums.has_balance) near(results[3], expected.score_sums, 0, "score_sums");
        if (c.sums.has_z) near(results[4], {expected.z_sum}, 0, "z_sum");
      });
}

constexpr RouterSums kAllSums{.has_loads = true, .has_balance = true, .has_z = true};

std::vector<RouterCase> every_form(int64_t tokens, int64_t experts, int64_t k) {
  RouterSums sigmoid_sums = kAllSums, other_choice = sigmoid_sums;
  sigmoid_sums.shares = other_choice.shares = RouterShares::kSigmoid;
  other_choice.counts_choices = false;
  return {{tokens, experts, {.num_chosen = k}, kAllSums},
          {tokens,
           experts,
           {.num_chosen = k, .choice = RouterChoice::kSoftmax, .weights = RouterWeights::kSoftmax, .factor = 1.5},
           kAllSums},
          {tokens,
           experts,
           {.num_chosen = k, .choice = RouterChoice::kSigmoid, .weights = RouterWeights::kSigmoidShare, .factor = 2.5},
           other_choice,
           /*has_bias=*/true},
          {tokens,
           experts,
           {.num_chosen = k, .choice = RouterChoice::kSigmoid, .weights = RouterWeights::kSigmoid},
           sigmoid_sums},
          {tokens, experts, {.num_chosen = k, .weights = RouterWeights::kSoftmax}, kAllSums, false, /*is_given=*/true}};
}

void try_all(std::vector<RouterCase> cases) {
  using Dtypes = std::vector<Dtype>;
  for (RouterCase c : cases) {
    for (const Dtype dtype :
         testing::is_thorough() ? Dtypes{Dtype::kFloat32, Dtype::kFloat64} : Dtypes{Dtype::kFloat32}) {
      c.dtype = dtype;
      try_route(c);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

TEST(RouterKernels, EveryFormEqualsLoopsInDoubleInEveryOrder) {
  // A block's last waves have no token; more tokens than a block takes at once (waves of 64); lanes without an expert;
  // one and several registers of a lane, and all of them.
  struct Size {
    int64_t tokens, experts, k;
  };
  const std::vector<Size> sizes = testing::is_thorough()
                                      ? std::vector<Size>{{1, 1, 1}, {0, 4, 2}, {11, 8, 2}, {9, 100, 6}, {5, 512, 16}}
                                      : std::vector<Size>{{11, 70, 3}};
  for (const auto& [tokens, experts, k] : sizes) try_all(every_form(tokens, experts, k));
}

TEST(RouterKernels, OfEqualScoresTheLowerNumbersAreChosen) {
  for (RouterCase c : every_form(13, 40, 5)) {
    if (c.is_given) continue;
    c.has_ties = true;
    try_all({c});
    if (!testing::is_thorough()) return;
    c.form.num_groups = 8;
    c.form.open_groups = 3;
    c.form.group_scores = 2;
    try_all({c});
  }
}

TEST(RouterKernels, ChooseOnlyOfTheBestGroups) {
  const RouterForm by_sum{.num_chosen = 8,
                          .choice = RouterChoice::kSigmoid,
                          .weights = RouterWeights::kSigmoidShare,
                          .num_groups = 8,
                          .open_groups = 4,
                          .group_scores = 2};
  const RouterForm by_largest{.num_chosen = 3,
                              .choice = RouterChoice::kSoftmax,
                              .weights = RouterWeights::kSoftmax,
                              .num_groups = 3,
                              .open_groups = 1};
  const RouterForm single{.num_chosen = 4, .num_groups = 70, .open_groups = 4};  // groups of one expert
  RouterSums sums = kAllSums;
  sums.counts_choices = false;
  try_all({{9, 64, by_sum, sums, /*has_bias=*/true}});
  if (!testing::is_thorough()) return;
  try_all({{11, 12, by_largest, sums}, {5, 70, single, sums}, {20, 256, by_sum, sums, /*has_bias=*/true}});
}

TEST(RouterKernels, SequencesAreSummedByThemselves) {
  // A rank's tokens begin and end in the middle of a sequence; sequences without tokens here; several
  // blocks of a sequence.
  for (const auto& [sequences, length, first, tokens] :
       std::vector<std::array<int64_t, 4>>{{3, 7, 5, 11}, {3, 7, 0, 21}, {4, 3, 6, 2}, {3, 20, 7, 50}}) {
    RouterSums sums = kAllSums;
    sums.num_sequences = sequences;
    sums.sequence_length = length;
    sums.first = first;
    try_all({{tokens, 6, {.num_chosen = 2}, sums}});
    if (HasFailure() || !testing::is_thorough()) return;
  }
}

TEST(RouterKernels, WhatIsNotAskedForIsNotTouched) {
  try_all({{9, 8, {.num_chosen = 2}},
           {9, 8, {.num_chosen = 2}, {.has_loads = true}},
           {9, 8, {.num_chosen = 2}, {.has_z = true}},
           {9, 8, {.num_chosen = 2}, {.has_balance = true}}});
}

TEST(RouterKernels, NumbersThatAreNoneAreChosenOnce) {
  // A gradient that is not finite ends the run later: until then every choice must be an expert.
  gpu_emulation::set_settings({});
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  const double rows[][5] = {{1, nan, 2, nan, 3}, {nan, nan, nan, nan, nan}, {-infinity, -infinity, -infinity, 1, 0}};
  const int64_t chosen[][3] = {{1, 3, 4}, {0, 1, 2}, {3, 4, 0}};
  Array logits(Dtype::kFloat32, 15), weights(Dtype::kFloat32, 9);
  for (int64_t i = 0; i < 15; ++i) logits.set(i, rows[i / 5][i % 5]);
  Numbers experts(9, -77);
  gpu::route_tokens({.dtype = Dtype::kFloat32,
                     .tokens = 3,
                     .num_experts = 5,
                     .form = {.num_chosen = 3},
                     .logits = logits.data(),
                     .experts = experts.data(),
                     .weights = weights.data()},
                    nullptr);
  for (size_t i = 0; i < 9; ++i) EXPECT_EQ(experts[i], chosen[i / 3][i % 3]) << i;
}

}  // namespace
}  // namespace megalith::ops
