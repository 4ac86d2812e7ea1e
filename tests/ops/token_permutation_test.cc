// The tokens' way to their experts: the maps, the rows that follow them, and what is summed on the way back.
#include "ops/token_permutation/token_permutation.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <vector>

#include "core/error.h"
#include "support/dtypes.h"
#include "support/gradients.h"
#include "support/on_device.h"
#include "support/tensor_near.h"

namespace megalith::ops::token_permutation_test {
namespace {

using at::Tensor;
using TokenPermutation = testing::OnDevice;
using testing::smallest_step_of;
using testing::unit_of;

constexpr Kernels kBoth[] = {Kernels::kFused, Kernels::kReference};

Tensor numbers(const std::vector<int64_t>& values) { return testing::tensor(values, at::kLong); }
at::ScalarType wide_of(at::ScalarType dtype) { return dtype == at::kDouble ? at::kDouble : at::kFloat; }

// k different experts for each token; a quarter of the pairs is dropped.
struct Routing {
  Tensor experts, keep;
};
Routing random_routing(int64_t t, int64_t k, int64_t e) {
  const Tensor experts = std::get<1>(testing::rand({t, e}).topk(k, 1)).contiguous();
  return {experts, testing::rand({t, k}) > 0.25};
}

TEST_P(TokenPermutation, PairsAreSortedByExpertThenToken) {
  const Tensor experts = numbers({2, 0, 0, 2, 2, 3}).view({3, 2});
  for (const Kernels kernels : kBoth) {
    const ExpertOrder all = sort_by_expert(experts, 5, {}, kernels);
    EXPECT_TENSOR_NEAR(all.counts, numbers({2, 0, 3, 1, 0}));
    EXPECT_TENSOR_NEAR(all.offsets, numbers({0, 2, 2, 5, 6, 6}));
    EXPECT_TENSOR_NEAR(all.pairs, numbers({1, 2, 0, 3, 4, 5}));
    EXPECT_TENSOR_NEAR(all.source, numbers({0, 1, 0, 1, 2, 2}));
    EXPECT_TENSOR_NEAR(all.slots, numbers({2, 0, 1, 3, 4, 5}).view({3, 2}));
    const Tensor keep = numbers({1, 0, 1, 1, 0, 1}).view({3, 2}).to(at::kBool);
    const ExpertOrder some = sort_by_expert(experts, 5, keep, kernels);
    EXPECT_TENSOR_NEAR(some.counts, numbers({1, 0, 2, 1, 0}));
    EXPECT_TENSOR_NEAR(some.offsets, numbers({0, 1, 1, 3, 4, 4}));
    EXPECT_TENSOR_NEAR(some.pairs, numbers({2, 0, 3, 5}));
    EXPECT_TENSOR_NEAR(some.source, numbers({1, 0, 1, 2}));
    EXPECT_TENSOR_NEAR(some.slots, numbers({1, -1, 0, 2, -1, 3}).view({3, 2}));
  }
}

TEST_P(TokenPermutation, WhatIsDroppedMayStayAsRowsOfPadding) {
  const Tensor experts = numbers({2, 0, 0, 2, 2, 3}).view({3, 2});
  const Tensor keep = numbers({1, 0, 1, 1, 0, 1}).view({3, 2}).to(at::kBool);
  for (const Kernels kernels : kBoth) {
    const ExpertOrder all = sort_all_by_expert(experts, 5, keep, kernels);
    EXPECT_TENSOR_NEAR(all.counts, numbers({1, 0, 2, 1, 0}));
    EXPECT_TENSOR_NEAR(all.offsets, numbers({0, 1, 1, 3, 4, 4}));
    EXPECT_TENSOR_NEAR(all.pairs, numbers({2, 0, 3, 5, -1, -1}));
    EXPECT_TENSOR_NEAR(all.source, numbers({1, 0, 1, 2, -1, -1}));
    EXPECT_TENSOR_NEAR(all.slots, numbers({1, -1, 0, 2, -1, 3}).view({3, 2}));
  }
}

TEST_P(TokenPermutation, RowsOfPaddingFollowEachExpertsAndWhatIsBeyondIsDropped) {
  const Tensor experts = numbers({2, 0, 0, 2, 2, 3}).view({3, 2});
  const Tensor keep = numbers({1, 0, 1, 1, 1, 1}).view({3, 2}).to(at::kBool);
  for (const Kernels kernels : kBoth) {
    const ExpertOrder two = sort_and_pad_by_expert(experts, 4, keep, 2, kernels);
    EXPECT_TENSOR_NEAR(two.counts, numbers({1, 0, 3, 1}));
    EXPECT_TENSOR_NEAR(two.offsets, numbers({0, 2, 4, 6, 8}));
    EXPECT_TENSOR_NEAR(two.pairs, numbers({2, -1, -1, -1, 0, 3, 5, -1}));
    EXPECT_TENSOR_NEAR(two.source, numbers({1, -1, -1, -1, 0, 1, 2, -1}));
    EXPECT_TENSOR_NEAR(two.slots, numbers({4, -1, 0, 5, -1, 6}).view({3, 2}));
    EXPECT_TENSOR_NEAR(sort_and_pad_by_expert(experts, 4, {}, 0, kernels).slots, at::full_like(experts, -1));
    EXPECT_THROW(sort_and_pad_by_expert(experts, 4, keep, -1, kernels), UserError);
  }
  at::manual_seed(9);
  for (const int64_t t : {0, 1, 101}) {
    const Routing routing = random_routing(t, 3, 8);
    for (const int64_t rows : {1, 20, 200}) {
      const ExpertOrder fused = sort_and_pad_by_expert(routing.experts, 8, routing.keep, rows);
      const ExpertOrder reference = sort_and_pad_by_expert(routing.experts, 8, routing.keep, rows, Kernels::kReference);
      EXPECT_TENSOR_NEAR(fused.counts, reference.counts);
      EXPECT_TENSOR_NEAR(fused.offsets, reference.offsets);
      EXPECT_TENSOR_NEAR(fused.pairs, reference.pairs);
      EXPECT_TENSOR_NEAR(fused.source, reference.source);
      EXPECT_TENSOR_NEAR(fused.slots, reference.slots);
    }
  }
}

TEST_P(TokenPermutation, KernelAndReferenceSortAlike) {
  at::manual_seed(1);
  struct Size {
    int64_t t, k, e;
  };
  for (const auto& [t, k, e] : {Size{0, 2, 3}, {1, 1, 1}, {101, 2, 8}, {64, 8, 64}, {17, 3, 300}}) {
    const Routing routing = random_routing(t, k, e);
    for (const Tensor& keep : {Tensor(), routing.keep, at::zeros_like(routing.keep)}) {
      const ExpertOrder fused = sort_by_expert(routing.experts, e, keep);
      const ExpertOrder reference = sort_by_expert(routing.experts, e, keep, Kernels::kReference);
      EXPECT_TENSOR_NEAR(fused.counts, reference.counts);
      EXPECT_TENSOR_NEAR(fused.offsets, reference.offsets);
      EXPECT_TENSOR_NEAR(fused.pairs, reference.pairs);
      EXPECT_TENSOR_NEAR(fused.source, reference.source);
      EXPECT_TENSOR_NEAR(fused.slots, reference.slots);
    }
  }
}

TEST_P(TokenPermutation, RowsFollowTheMapsInEveryDtype) {
  at::manual_seed(2);
  struct Size {
    int64_t t, k, e, h;
  };
  for (const auto& [t, k, e, h] : {Size{0, 2, 4, 8}, {1, 1, 1, 1}, {37, 2, 5, 67}, {20, 6, 16, 96}, {9, 2, 3, 131}}) {
    for (const at::ScalarType dtype : testing::kFloatingDtypes) {
      const Routing routing = random_routing(t, k, e);
      const ExpertOrder order = sort_by_expert(routing.experts, e, routing.keep);
      const int64_t n = order.source.size(0);
      const Tensor x = testing::randn({t, h + 3}).to(dtype).narrow(1, 2, h), dout = testing::randn({t, h}).to(dtype);
      const Tensor y = testing::randn({n, h + 1}).to(dtype).narrow(1, 1, h);
      const Tensor weights = testing::rand({t, k}, wide_of(dtype));
      const Tensor permuted = x.index_select(0, order.source);
      // In float64, pair by pair.
      const Tensor sums = testing::zeros({t, h}, at::kDouble), plain = testing::zeros({t, h}, at::kDouble);
      const Tensor dy = testing::zeros({n, h}, at::kDouble), dweights = testing::zeros({t, k}, at::kDouble);
      for (int64_t i = 0; i < t * k; ++i) {
        const int64_t slot = order.slots.view(-1)[i].item<int64_t>(), token = i / k;
        if (slot < 0) continue;
        const double weight = weights.view(-1)[i].item<double>();
        const Tensor row = y[slot].to(at::kDouble), grad = dout[token].to(at::kDouble);
        sums[token] += weight * row;
        plain[token] += row;
        dy[slot] += weight * grad;
        dweights.view(-1)[i] += grad.dot(row);
      }
      for (const Kernels kernels : kBoth) {
        const auto what = fmt::format("({}, {}, {}, {}) {}", t, k, e, h, c10::toString(dtype));
        EXPECT_TENSOR_NEAR(permute_tokens(x, order.source, kernels), permuted, {.what = what});
        // Sums of at most 6 products in the wide dtype, then one rounding.
        const double unit = unit_of(dtype), wide = 16 * unit_of(wide_of(dtype)), step = smallest_step_of(dtype);
        const testing::Tolerance rounded{.abs = 6 * wide + step, .rel = 0.51 * unit + wide, .what = what};
        EXPECT_TENSOR_NEAR(combine_tokens(y, order.slots, weights, kernels), sums, rounded);
        EXPECT_TENSOR_NEAR(combine_tokens(y, order.slots, {}, kernels), plain, rounded);
        const auto [dy_k, dweights_k] = combine_tokens_backward(dout, y, order.source, order.slots, weights, kernels);
        EXPECT_TENSOR_NEAR(dy_k, dy, rounded);
        // Sums of h products of numbers below 5.
        EXPECT_TENSOR_NEAR(dweights_k, dweights, {.abs = 40 * wide, .rel = wide, .what = what + " dweights"});
      }
    }
  }
}

TEST_P(TokenPermutation, RowsOfPaddingAreZero) {
  // Two experts padded to three rows each: rows 2 and 5 are padding.
  const Tensor source = numbers({0, 1, -1, 1, 2, -1}), slots = numbers({0, 3, 1, -1, 4, -1}).view({3, 2});
  const Tensor valid_slots = numbers({0, -1, 1, 3, 4, -1}).view({3, 2});
  const Tensor x = testing::rand({3, 19}) + 1, y = testing::full({6, 19}, 7.0f), weights = testing::rand({3, 2}) + 1;
  for (const Kernels kernels : kBoth) {
    const Tensor rows = permute_tokens(x, source, kernels);
    EXPECT_TENSOR_NEAR(rows[2], testing::zeros({19}));
    EXPECT_TENSOR_NEAR(rows[4], x[2]);
    const auto [dy, dweights] = combine_tokens_backward(x, y, source, valid_slots, weights, kernels);
    EXPECT_TENSOR_NEAR(dy[2], testing::zeros({19}));
    EXPECT_TENSOR_NEAR(dy[5], testing::zeros({19}));
    EXPECT_TENSOR_NEAR(dy[3], weights[1][1] * x[1]);
    EXPECT_EQ(dweights[0][1].item<float>(), 0);
  }
}

TEST(TokenPermutation, NumbersDoNotDependOnTheNumberOfThreads) {
  at::manual_seed(3);
  const int before = at::get_num_threads();
  const Routing routing = random_routing(500, 4, 9);
  const ExpertOrder order = sort_by_expert(routing.experts, 9, routing.keep);
  const Tensor y = testing::randn({order.source.size(0), 300}).to(at::kBFloat16);
  const Tensor dout = testing::randn({500, 300}).to(at::kBFloat16), weights = testing::rand({500, 4});
  std::vector<std::vector<Tensor>> results;
  for (const int threads : {1, 2, 3, 7}) {
    at::set_num_threads(threads);
    const auto [dy, dweights] = combine_tokens_backward(dout, y, order.source, order.slots, weights);
    results.push_back({combine_tokens(y, order.slots, weights), dy, dweights});
  }
  at::set_num_threads(before);
  for (const auto& result : results) {
    for (size_t i = 0; i < result.size(); ++i) EXPECT_TRUE(at::equal(result[i], results[0][i])) << "result " << i;
  }
}

TEST_P(TokenPermutation, GradientsMatchDifferences) {
  at::manual_seed(4);
  const Routing routing = random_routing(5, 2, 4);
  const ExpertOrder order = sort_by_expert(routing.experts, 4, routing.keep);
  const int64_t n = order.source.size(0);
  for (const Kernels kernels : kBoth) {
    const std::string what = kernels == Kernels::kFused ? "fused" : "reference";
    testing::expect_gradients_match_differences(
        [&](const std::vector<Tensor>& in) { return permute_tokens(in[0], order.source, kernels); },
        [&](const Tensor& dy, const std::vector<Tensor>&) -> std::vector<Tensor> {
          return {combine_tokens(dy, order.slots, {}, kernels)};
        },
        {testing::randn({5, 3}, at::kDouble)}, what + " permute");
    testing::expect_gradients_match_differences(
        [&](const std::vector<Tensor>& in) { return combine_tokens(in[0], order.slots, in[1], kernels); },
        [&](const Tensor& dout, const std::vector<Tensor>& in) -> std::vector<Tensor> {
          const auto [dy, dweights] = combine_tokens_backward(dout, in[0], order.source, order.slots, in[1], kernels);
          return {dy, dweights};
        },
        {testing::randn({n, 3}, at::kDouble), testing::randn({5, 2}, at::kDouble)}, what + " weighted");
    testing::expect_gradients_match_differences(
        [&](const std::vector<Tensor>& in) { return combine_tokens(in[0], order.slots, {}, kernels); },
        [&](const Tensor& dout, const std::vector<Tensor>&) -> std::vector<Tensor> {
          return {permute_tokens(dout, order.source, kernels)};
        },
        {testing::randn({n, 3}, at::kDouble)}, what + " plain");
  }
}

TEST(TokenPermutation, WrongArgumentsAreNamed) {
  EXPECT_THROW(sort_by_expert(numbers({0, 3}).view({1, 2}), 3), UserError);
  EXPECT_THROW(sort_by_expert(numbers({0, -1}).view({1, 2}), 3), UserError);
  EXPECT_THROW(sort_by_expert(numbers({0, 1}), 3), UserError);
  EXPECT_THROW(sort_by_expert(numbers({0, 1}).view({1, 2}), 3, testing::ones({1, 1}, at::kBool)), UserError);
  const Tensor x = testing::ones({2, 3}), source = numbers({0, 1}), slots = numbers({0, 1}).view({2, 1});
  EXPECT_THROW(permute_tokens(x, numbers({2})), UserError);
  EXPECT_THROW(permute_tokens(x, numbers({-2})), UserError);
  EXPECT_THROW(permute_tokens(x.t(), source), UserError);
  EXPECT_THROW(combine_tokens(x, numbers({2}).view({1, 1})), UserError);
  EXPECT_THROW(combine_tokens(x, slots, testing::ones({2, 1}, at::kDouble)), UserError);
  EXPECT_THROW(combine_tokens_backward(x, x, source, slots, {}), UserError);
  EXPECT_THROW(combine_tokens_backward(testing::ones({3, 3}), x, source, slots, testing::ones({2, 1})), UserError);
}

MEGALITH_ON_EVERY_DEVICE(TokenPermutation);

}  // namespace
}  // namespace megalith::ops::token_permutation_test
