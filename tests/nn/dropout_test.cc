// Dropout of hidden activations: its node drops in backward what it dropped in forward.
#include "nn/dropout.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

#include "comm/groups.h"
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

}  // namespace
}  // namespace megalith
