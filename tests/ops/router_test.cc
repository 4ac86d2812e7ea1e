// A router's decision: kernels against the reference, the reference against autograd; and what ties and limits do. That
// the reference is what loops over tokens and experts give, tests/nn/expert_router_test.cc has it.
#include "ops/router/router.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <string>
#include <vector>

#include "core/error.h"
#include "support/on_device.h"
#include "support/tensor_near.h"

namespace megalith::ops::router_test {
namespace {

using at::Tensor;
using Router = testing::OnDevice;

struct RoutingCase {
  std::string name;
  int64_t experts;
  RouterForm form;
  RouterSums sums;
  bool has_bias = false, is_given = false;
};

std::vector<RoutingCase> routing_cases() {
  const RouterSums all{.has_loads = true, .has_balance = true, .has_z = true};
  RouterSums of_shares = all, of_sequences = all;
  of_shares.shares = RouterShares::kSigmoid;
  of_shares.counts_choices = false;
  of_sequences.num_sequences = 4;
  of_sequences.sequence_length = 12;
  of_sequences.first = 5;
  const RouterForm sigmoid{
      .num_chosen = 3, .choice = RouterChoice::kSigmoid, .weights = RouterWeights::kSigmoidShare, .factor = 2.5};
  RouterForm groups = sigmoid;
  groups.num_groups = 4;
  groups.open_groups = 2;
  groups.group_scores = 2;
  return {{"softmax of the chosen", 8, {.num_chosen = 2}, all},
          {"by sequence", 8, {.num_chosen = 2}, of_sequences},
          {"softmax of all", 70, {2, RouterChoice::kSoftmax, RouterWeights::kSoftmax, 1.5}, all},
          {"sigmoid of one", 8, {1, RouterChoice::kSigmoid, RouterWeights::kSigmoid}, of_shares},
          {"sigmoid with bias", 300, sigmoid, of_shares, true},
          {"groups", 12, groups, of_shares, true},
          {"a choice made elsewhere", 8, {.num_chosen = 2, .weights = RouterWeights::kSoftmax}, all, false, true},
          {"nothing but the choice", 8, {.num_chosen = 2}, {}},
          {"more than a kernel holds", 600, {.num_chosen = 40}, all}};
}

struct RoutingInputs {
  Tensor logits, bias, experts;
  RoutedGradients gradients;

  RoutingInputs(const RoutingCase& c, at::ScalarType dtype, int64_t tokens = 37) {
    at::manual_seed(1);
    logits = testing::randn({tokens, c.experts}, dtype);
    if (c.has_bias) bias = testing::randn({c.experts}, dtype);
    if (c.is_given)
      experts =
          testing::rand({tokens, c.experts}).argsort(/*stable=*/true, 1).narrow(1, 0, c.form.num_chosen).contiguous();
    gradients.weights = testing::randn({tokens, c.form.num_chosen}, dtype);
    if (c.sums.has_balance) gradients.score_sums = testing::randn({c.sums.balance_rows(), c.experts}, dtype);
    if (c.sums.has_z) gradients.z_sum = testing::randn({1}, dtype);
  }
  RoutedTokens route(const RoutingCase& c, Kernels kernels) const {
    return route_tokens(logits, bias, experts, c.form, c.sums, kernels);
  }
};

TEST_P(Router, KernelsEqualTheReference) {
  for (const RoutingCase& c : routing_cases()) {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
      const RoutingInputs in(c, dtype);
      const RoutedTokens fused = in.route(c, Kernels::kFused), reference = in.route(c, Kernels::kReference);
      // Exponentials, and sums of up to some hundred terms in another order.
      const double unit = dtype == at::kDouble ? 1e-14 : 4e-6;
      const auto near = [&](const Tensor& a, const Tensor& b, const char* what) {
        ASSERT_EQ(a.defined(), b.defined()) << c.name << ", " << what;
        if (a.defined()) {
          EXPECT_TENSOR_NEAR(a, b, {.abs = unit, .rel = unit, .rel_to_max = unit, .what = c.name + ", " + what});
        }
      };
      EXPECT_TENSOR_NEAR(fused.experts, reference.experts, {.what = c.name});
      near(fused.weights, reference.weights, "weights");
      near(fused.counts, reference.counts, "counts");
      near(fused.score_sums, reference.score_sums, "score_sums");
      near(fused.z_sum, reference.z_sum, "z_sum");
      EXPECT_EQ(fused.loads.defined(), reference.loads.defined());
      if (fused.loads.defined()) {
        EXPECT_TENSOR_NEAR(fused.loads, reference.loads, {.what = c.name + ", loads"});
      }
      near(route_tokens_backward(in.logits, fused.experts, in.gradients, c.form, c.sums),
           route_tokens_backward(in.logits, fused.experts, in.gradients, c.form, c.sums, Kernels::kReference),
           "dlogits");
    }
  }
}

TEST_P(Router, TheGradientIsAutogradsOfTheReference) {
  for (const RoutingCase& c : routing_cases()) {
    RoutingInputs in(c, at::kDouble);
    in.logits.set_requires_grad(true);
    const RoutedTokens routed = in.route(c, Kernels::kReference);
    Tensor sum = (routed.weights * in.gradients.weights).sum();
    if (routed.score_sums.defined()) sum = sum + (routed.score_sums * in.gradients.score_sums).sum();
    if (routed.z_sum.defined()) sum = sum + (routed.z_sum * in.gradients.z_sum).sum();
    const Tensor expected = torch::autograd::grad({sum}, {in.logits})[0];
    const Tensor logits = in.logits.detach();
    for (const Kernels kernels : {Kernels::kFused, Kernels::kReference}) {
      EXPECT_TENSOR_NEAR(route_tokens_backward(logits, routed.experts, in.gradients, c.form, c.sums, kernels), expected,
                         {.abs = 1e-13, .rel_to_max = 1e-13, .what = c.name});
    }
    // One gradient by itself: the others give nothing.
    const Tensor of_weights = torch::autograd::grad(
        {(in.route(c, Kernels::kReference).weights * in.gradients.weights).sum()}, {in.logits})[0];
    EXPECT_TENSOR_NEAR(route_tokens_backward(logits, routed.experts, {.weights = in.gradients.weights}, c.form, c.sums),
                       of_weights, {.abs = 1e-13, .rel_to_max = 1e-13, .what = c.name + ", weights"});
    EXPECT_EQ(route_tokens_backward(logits, routed.experts, {}, c.form, c.sums).abs().max().item<double>(), 0);
  }
}

TEST_P(Router, OfEqualScoresTheLowerNumbersAreChosen) {
  const Tensor logits = testing::here(at::tensor({1.0, 3.0, 1.0, 3.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0})).view({2, 5});
  const Tensor expected = testing::tensor(std::vector<int64_t>{1, 3, 0, 0, 1, 2}, at::kLong).view({2, 3});
  for (const Kernels kernels : {Kernels::kFused, Kernels::kReference}) {
    for (const RouterChoice choice : {RouterChoice::kLogits, RouterChoice::kSoftmax, RouterChoice::kSigmoid}) {
      const RouterForm form{.num_chosen = 3, .choice = choice};
      EXPECT_TENSOR_NEAR(route_tokens(logits, {}, {}, form, {}, kernels).experts, expected);
    }
  }
}

TEST_P(Router, NoTokensGiveSumsOfZero) {
  for (const RoutingCase& c : routing_cases()) {
    const RoutingInputs in(c, at::kFloat, 0);
    for (const Kernels kernels : {Kernels::kFused, Kernels::kReference}) {
      const RoutedTokens routed = in.route(c, kernels);
      EXPECT_EQ(routed.experts.sizes(), (std::vector<int64_t>{0, c.form.num_chosen}));
      for (const Tensor& sum : {routed.loads, routed.counts, routed.score_sums, routed.z_sum}) {
        if (!sum.defined()) continue;
        EXPECT_EQ(sum.abs().sum().item<double>(), 0) << c.name;
      }
      EXPECT_EQ(route_tokens_backward(in.logits, routed.experts, in.gradients, c.form, c.sums, kernels).size(0), 0);
    }
  }
}
MEGALITH_ON_EVERY_DEVICE(Router);

TEST(RouterErrors, SayWhatIsWrong) {
  const Tensor logits = at::randn({3, 8}), experts = at::zeros({3, 2}, at::kLong);
  const RouterForm two{.num_chosen = 2};
  EXPECT_THROW(route_tokens(logits[0], {}, {}, two, {}), UserError);
  EXPECT_THROW(route_tokens(logits.to(at::kBFloat16), {}, {}, two, {}), UserError);
  EXPECT_THROW(route_tokens(logits, {}, {}, {.num_chosen = 9}, {}), UserError);
  EXPECT_THROW(route_tokens(logits, {}, {}, {.num_chosen = 0}, {}), UserError);
  EXPECT_THROW(route_tokens(logits, at::zeros({7}), {}, two, {}), UserError);
  EXPECT_THROW(route_tokens(logits, {}, experts.narrow(1, 0, 1), two, {}), UserError);
  EXPECT_THROW(route_tokens(logits, {}, {}, {.num_chosen = 2, .num_groups = 3, .open_groups = 1}, {}), UserError);
  EXPECT_THROW(route_tokens(logits, {}, {}, {.num_chosen = 3, .num_groups = 4, .open_groups = 1}, {}), UserError);
  EXPECT_THROW(route_tokens(logits, {}, {}, two, {.num_sequences = 1, .sequence_length = 2}), UserError);
  EXPECT_THROW(route_tokens_backward(logits, experts, {.weights = at::zeros({3, 3})}, two, {}), UserError);
  EXPECT_THROW(route_tokens_backward(logits, experts, {.score_sums = at::zeros({2, 8})}, two, {}), UserError);
  EXPECT_THROW(route_tokens_backward(logits, experts, {.z_sum = at::zeros({1}, at::kDouble)}, two, {}), UserError);
}

}  // namespace
}  // namespace megalith::ops::router_test
