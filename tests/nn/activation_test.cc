// The activations' nodes: gradients against finite differences, of the fused kernels and of the references.
#include "nn/activation.h"

#include <gtest/gtest.h>

#include <vector>

#include "ops/swiglu/swiglu.h"
#include "support/gradients.h"
#include "support/tensor_near.h"

namespace megalith {
namespace {

using ops::ActivationKind;

constexpr ops::ExpertActivation kMlpActivations[] = {
    {ActivationKind::kSilu, true},
    {ActivationKind::kGelu, true},
    {ActivationKind::kGelu, false},
    {ActivationKind::kGeluTanh, true},
    {ActivationKind::kGeluTanh, false},
    {ActivationKind::kSquaredRelu, false},
    {.kind = ActivationKind::kQuickGelu, .up_offset = 1, .limit = 0.75}};

TEST(Activation, GradientsMatchFiniteDifferences) {
  at::manual_seed(1);
  for (const Kernels kernels : {Kernels::kFused, Kernels::kReference}) {
    for (const ops::ExpertActivation& activation : kMlpActivations) {
      const testing::TensorFunction f = [&](const std::vector<at::Tensor>& in) {
        return activated(in[0], activation, kernels).value;
      };
      testing::expect_gradients_match_differences(
          f, testing::gradients_by_autograd(f), {at::randn({3, 14}, at::kDouble)},
          fmt::format("kind {} gated {} kernels {}", static_cast<int>(activation.kind), activation.is_gated,
                      static_cast<int>(kernels)));
    }
  }
}

TEST(Activation, GradientsOfWeightedRowsMatchFiniteDifferences) {
  at::manual_seed(2);
  for (const Kernels kernels : {Kernels::kFused, Kernels::kReference}) {
    for (const bool is_gated : {false, true}) {
      const testing::TensorFunction f = [&](const std::vector<at::Tensor>& in) {
        return activated_rows(in[0], in.size() > 1 ? in[1] : at::Tensor(), {ActivationKind::kGelu, is_gated}, kernels)
            .value;
      };
      const at::Tensor x = at::randn({3, 14}, at::kDouble), weights = at::rand({3}, at::kDouble);
      testing::expect_gradients_match_differences(f, testing::gradients_by_autograd(f), {x, weights}, "with weights");
      testing::expect_gradients_match_differences(f, testing::gradients_by_autograd(f), {x}, "without weights");
    }
  }
}

TEST(Activation, BroadcastGradientIsAccepted) {
  const at::Tensor x = at::randn({3, 8}).requires_grad_(true);
  activated(x, {ActivationKind::kSilu, true}, Kernels::kFused).value.sum().backward();  // sum's gradient has strides 0
  EXPECT_TENSOR_NEAR(x.grad(), ops::swiglu_backward(at::ones({3, 4}), x.detach()));
}

}  // namespace
}  // namespace megalith
