// Sampling: limits are obeyed exactly, frequencies follow the probabilities, draws repeat.
#include "train/sampling.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

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
