// Sampling: limits are obeyed exactly, frequencies follow the probabilities, draws repeat.
#include "train/sampling.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "core/philox.h"

namespace megalith {
namespace {

// Probabilities 0.5, 0.3, 0.15, 0.05 at temperature 1, out of order.
at::Tensor logits() { return at::tensor({0.15, 0.5, 0.05, 0.3}).log().unsqueeze(0); }

std::map<int64_t, int> draw(const SamplingOptions& options, int count) {
  std::map<int64_t, int> counts;
  for (int step = 0; step < count; ++step) ++counts[sample_tokens(logits(), options, step).item<int64_t>()];
  return counts;
}

TEST(Sampling, TemperatureZeroTakesTheMostLikely) {
  EXPECT_EQ(sample_tokens(logits(), {.temperature = 0}, 0).item<int64_t>(), 1);
}

// 4000 draws: the standard deviation of a frequency is at most 0.008; four of them.
TEST(Sampling, FrequenciesFollowTheProbabilities) {
  const std::map<int64_t, int> counts = draw({}, 4000);
  EXPECT_NEAR(counts.at(0) / 4000.0, 0.15, 0.032);
  EXPECT_NEAR(counts.at(1) / 4000.0, 0.5, 0.032);
  EXPECT_NEAR(counts.at(2) / 4000.0, 0.05, 0.032);
  EXPECT_NEAR(counts.at(3) / 4000.0, 0.3, 0.032);
}

TEST(Sampling, TopKKeepsTheKMostLikely) {
  const std::map<int64_t, int> counts = draw({.top_k = 2}, 500);
  EXPECT_EQ(counts.size(), 2u);
  EXPECT_TRUE(counts.contains(1) && counts.contains(3));
}

TEST(Sampling, TopPKeepsTheSmallestSetThatReachesP) {
  EXPECT_EQ(draw({.top_p = 0.49}, 200).size(), 1u);
  EXPECT_EQ(draw({.top_p = 0.79}, 500).size(), 2u);
  EXPECT_EQ(draw({.top_p = 0.9}, 1000).size(), 3u);
}

// The rule as it is written: all probabilities sorted, limited, summed up.
int64_t sorted_choice(const at::Tensor& logits, const SamplingOptions& options, double u) {
  auto [scores, order] = (logits[0].to(at::kDouble) / options.temperature).sort(/*stable=*/true, 0, true);
  if (options.top_k > 0) scores = scores.masked_fill(scores < scores[options.top_k - 1], -INFINITY);
  at::Tensor probabilities = at::softmax(scores, 0);
  const at::Tensor before = probabilities.cumsum(0) - probabilities;
  if (options.top_p < 1) probabilities = probabilities.masked_fill(before >= options.top_p, 0.0);
  const at::Tensor sums = probabilities.cumsum(0);
  return order[(sums <= u * sums[-1]).sum().item<int64_t>()].item<int64_t>();
}

TEST(Sampling, OfALargeVocabularyTheTokenThatSortingAllWouldGive) {
  const at::Tensor many = at::randn({1, 5000}, at::make_generator<at::CPUGeneratorImpl>(7)) * 2;
  many[0][3] = many[0][4] = many[0].max();  // equal ones
  const uint64_t key = make_philox_key(3, "sampling");
  std::map<int64_t, int> chosen;
  for (const SamplingOptions& options :
       {SamplingOptions{}, SamplingOptions{.top_k = 50}, SamplingOptions{.top_k = 2}, SamplingOptions{.top_p = 0.9},
        SamplingOptions{.temperature = 0.7, .top_k = 1000, .top_p = 0.5}}) {
    SamplingOptions seeded = options;
    seeded.sampling_seed = 3;
    for (int step = 0; step < 100; ++step) {
      const int64_t id = sample_tokens(many, seeded, step).item<int64_t>();
      ASSERT_EQ(id, sorted_choice(many, seeded, uniform_at(key, static_cast<uint64_t>(step), 0)));
      ++chosen[id];
    }
  }
  EXPECT_GT(chosen.size(), 100u);
}

TEST(Sampling, LowTemperatureSharpens) {
  EXPECT_GT(draw({.temperature = 0.25}, 500).at(1), 400);  // 0.5^4 / sum = 0.87
}

TEST(Sampling, ADrawDependsOnSeedStepAndRowAlone) {
  const at::Tensor two = logits().repeat({2, 1});
  for (int step = 0; step < 20; ++step) {
    EXPECT_EQ(sample_tokens(two, {}, step)[0].item<int64_t>(), sample_tokens(logits(), {}, step).item<int64_t>());
  }
  EXPECT_NE(draw({.sampling_seed = 1}, 50), draw({.sampling_seed = 2}, 50));
}

}  // namespace
}  // namespace megalith
