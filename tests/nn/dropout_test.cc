// Dropout of hidden activations: its node drops in backward what it dropped in forward. Noise in embeddings.
#include "nn/dropout.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "comm/groups.h"
#include "nn/embedding_noise.h"
#include "support/gradients.h"

namespace megalith {
namespace {

TEST(HiddenDropout, GradientMatchesFiniteDifferences) {
  at::manual_seed(1);
  const Groups groups = Groups::single();
  for (const Kernels kernels : {Kernels::kFused, Kernels::kReference}) {
    const HiddenDropout dropout({.groups = &groups, .dtype = at::kDouble, .kernels = kernels}, "layer", 0.5);
    ForwardContext forward;
    forward.row_ids = at::tensor({4, 9, 2}, at::kLong).view({1, 3});
    const testing::TensorFunction f = [&](const std::vector<at::Tensor>& in) {
      return dropout.forward(in[0], forward);
    };
    const at::Tensor x = at::randn({3, 8}, at::kDouble);
    ASSERT_TRUE((f({x}) == 0).any().item<bool>()) << "nothing was dropped";
    testing::expect_gradients_match_differences(f, testing::gradients_by_autograd(f), {x},
                                                kernels == Kernels::kFused ? "fused" : "reference");
  }
}

// 64,000 draws: their mean is known to 0.4 % of the bound, their extremes to a thousandth.
TEST(EmbeddingNoise, IsUniformWithinAlphaByTheRootOfTheRowsSizeAndTheSameForARow) {
  const Groups groups = Groups::single();
  const EmbeddingNoise noise({.groups = &groups, .embedding_noise = 5}, "embed_tokens");
  ForwardContext forward{.b = 2, .s = 500};
  forward.row_ids = at::arange(1000, at::kLong).view({2, 500});
  const at::Tensor x = at::randn({1000, 64});
  const at::Tensor added = noise.forward(x, forward) - x;
  const double bound = 5 / std::sqrt(500.0 * 64);
  EXPECT_NEAR(added.max().item<double>(), bound, 1e-3 * bound);
  EXPECT_NEAR(added.min().item<double>(), -bound, 1e-3 * bound);
  EXPECT_NEAR(added.mean().item<double>(), 0, 0.01 * bound);
  EXPECT_NEAR(added.std().item<double>(), bound / std::sqrt(3.0), 0.01 * bound);

  // A rank's part of the tokens, of a row of the same length.
  ForwardContext part{.b = 1, .s = 30, .row_ids = forward.row_ids.narrow(1, 90, 30).slice(0, 1, 2), .row_length = 500};
  const at::Tensor own = x.narrow(0, 590, 30);
  EXPECT_TRUE(at::equal(noise.forward(own, part), noise.forward(x, forward).narrow(0, 590, 30)));
  forward.is_training = false;
  EXPECT_TRUE(at::equal(noise.forward(x, forward), x));
}

}  // namespace
}  // namespace megalith
