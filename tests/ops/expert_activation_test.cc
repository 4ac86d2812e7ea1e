// expert_activation: every activation, plain and gated, with and without weights, against float64 and differences.
#include "ops/expert_activation/expert_activation.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/error.h"
#include "ops/swiglu/swiglu.h"
#include "support/dtypes.h"
#include "support/gradients.h"
#include "support/on_device.h"
#include "support/tensor_near.h"

namespace megalith::ops::expert_activation_test {
namespace {

using at::Tensor;
using ExpertActivations = testing::OnDevice;
using testing::smallest_step_of;
using testing::unit_of;

constexpr ActivationKind kKinds[] = {ActivationKind::kSilu, ActivationKind::kGelu, ActivationKind::kGeluTanh,
                                     ActivationKind::kSquaredRelu};
constexpr Kernels kBoth[] = {Kernels::kFused, Kernels::kReference};

struct Shape {
  int64_t rows, columns;
};
constexpr Shape kShapes[] = {{0, 8}, {1, 1}, {3, 7}, {2, 64}, {5, 131}, {67, 48}};

at::ScalarType wide_of(at::ScalarType dtype) { return dtype == at::kDouble ? at::kDouble : at::kFloat; }

// body(activation, what)
template <typename Body>
void for_each_activation(Body&& body) {
  for (const ActivationKind kind : kKinds) {
    for (const bool is_gated : {false, true}) {
      body(ExpertActivation{kind, is_gated},
           fmt::format("kind {}{}", static_cast<int>(kind), is_gated ? " gated" : ""));
    }
  }
  body(ExpertActivation{ActivationKind::kQuickGelu}, "quick gelu");
  for (const bool is_interleaved : {false, true}) {
    // The limit has two significant bits: no rounding carries a number over it.
    body(
        ExpertActivation{
            .kind = ActivationKind::kQuickGelu, .is_interleaved = is_interleaved, .up_offset = 1, .limit = 1.5},
        fmt::format("quick gelu with limits{}", is_interleaved ? " interleaved" : ""));
  }
}

// gpt-oss: 10 counts as 7 in a gate and up, -10 as -7 only in up.
TEST(ExpertActivations, GatesAreLimitedAboveAndUpsOnBothSides) {
  const ExpertActivation limited{.kind = ActivationKind::kQuickGelu, .up_offset = 1, .limit = 7};
  ExpertActivation interleaved = limited;
  interleaved.is_interleaved = true;
  const Tensor gate = testing::tensor({10., -10., 2., 7.}, at::kDouble),
               up = testing::tensor({-10., 10., 3., 7.}, at::kDouble);
  const auto act = [](double v) { return v / (1 + std::exp(-1.702 * v)); };
  const Tensor expected =
      testing::tensor({act(7) * -6, act(-10) * 8, act(2) * 4, act(7) * 8}, at::kDouble).view({1, 4});
  const Tensor apart = at::cat({gate, up}).view({1, 8}), in_turn = at::stack({gate, up}, 1).view({1, 8});
  EXPECT_TENSOR_NEAR(expert_activation(apart, {}, limited), expected, {.rel = 1e-14});
  EXPECT_TENSOR_NEAR(expert_activation(in_turn, {}, interleaved), expected, {.rel = 1e-14});
  // Nothing flows into what is beyond a limit; at the limit itself it does.
  const Tensor dx = std::get<0>(expert_activation_backward(at::ones_like(expected), apart, {}, limited));
  EXPECT_TRUE(at::equal(dx.ne(0).view({8}), testing::tensor({0., 1., 1., 1., 0., 0., 1., 1.}, at::kDouble).ne(0)));
}

TEST_P(ExpertActivations, MatchesReferenceAndFloat64) {
  at::manual_seed(1);
  for_each_activation([](ExpertActivation activation, const std::string& name) {
    for (const auto& [rows, columns] : kShapes) {
      for (const at::ScalarType dtype : testing::kFloatingDtypes) {
        const Tensor x = (testing::randn({rows, columns * (activation.is_gated ? 2 : 1)}) * 3).to(dtype);
        const Tensor dy = testing::randn({rows, columns}).to(dtype);
        const Tensor weights = testing::rand({rows}, wide_of(dtype)) + 0.1;
        const double unit = unit_of(dtype), wide = unit_of(wide_of(dtype));
        for (const bool has_weights : {false, true}) {
          const Tensor w = has_weights ? weights : Tensor(), w64 = has_weights ? weights.to(at::kDouble) : Tensor();
          const Tensor y64 = expert_activation(x.to(at::kDouble), w64, activation, Kernels::kReference);
          const auto [dx64, dw64] =
              expert_activation_backward(dy.to(at::kDouble), x.to(at::kDouble), w64, activation, Kernels::kReference);
          for (const Kernels kernels : kBoth) {
            const auto what =
                fmt::format("{} ({}, {}) {}{}{}", name, rows, columns, c10::toString(dtype),
                            has_weights ? " weights" : "", kernels == Kernels::kFused ? "" : " reference");
            // Two roundings of half a unit. Absolutely: slopes of GELU are sums that cancel near their zero and, in the
            // reference, for negative numbers, to a few units of the dtype of sums, times |dy up| < 30; act(gate)
            // rounds to half of fp16's smallest step, times |up| < 15.
            const double rel = 1.1 * unit + 16 * wide, abs = 128 * wide + 8 * smallest_step_of(dtype);
            EXPECT_TENSOR_NEAR(expert_activation(x, w, activation, kernels), y64,
                               {.abs = abs, .rel = rel, .what = what});
            const auto [dx, dw] = expert_activation_backward(dy, x, w, activation, kernels);
            EXPECT_TENSOR_NEAR(dx, dx64, {.abs = abs, .rel = rel, .what = what + " dx"});
            ASSERT_EQ(dw.scalar_type(), wide_of(dtype));
            // act(gate) is rounded before it is multiplied and summed.
            const double rounded = activation.is_gated ? unit : 0;
            EXPECT_TENSOR_NEAR(dw, dw64, {.abs = 1e3 * wide, .rel_to_max = rounded + 16 * wide, .what = what + " dw"});
          }
        }
      }
    }
  });
}

TEST_P(ExpertActivations, GatedSiluWithoutWeightsIsSwiglu) {
  at::manual_seed(2);
  for (const at::ScalarType dtype : testing::kFloatingDtypes) {
    const Tensor x = testing::randn({9, 2 * 77}).to(dtype), dy = testing::randn({9, 77}).to(dtype);
    const double unit = unit_of(dtype);
    EXPECT_TENSOR_NEAR(expert_activation(x), swiglu(x), {.rel = 2 * unit});
    EXPECT_TENSOR_NEAR(std::get<0>(expert_activation_backward(dy, x)), swiglu_backward(dy, x),
                       {.abs = unit_of(wide_of(dtype)) * 16, .rel = 2 * unit});
  }
}

// On the CPU only: references multiply 0 by infinity.
TEST(ExpertActivations, LargeNumbersNeitherOverflowNorTurnIntoNan) {
  for_each_activation([](ExpertActivation activation, const std::string& what) {
    if (activation.is_gated || activation.kind == ActivationKind::kSquaredRelu) return;
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
      const Tensor x =
          testing::tensor({-1e30, -1e4, -200., -100., 100., 200., 1e4, 1e30}, at::kDouble).to(dtype).view({1, -1});
      // 0 below (4e-42 at -100) and the number itself above.
      EXPECT_TENSOR_NEAR(expert_activation(x, {}, activation), at::relu(x), {.abs = 1e-30, .rel = 1e-6, .what = what});
      EXPECT_TENSOR_NEAR(std::get<0>(expert_activation_backward(at::ones_like(x), x, {}, activation)),
                         (x > 0).to(dtype), {.abs = 1e-30, .rel = 1e-6, .what = what + " slope"});
    }
  });
}

TEST_P(ExpertActivations, GradientsMatchDifferences) {
  at::manual_seed(3);
  for_each_activation([](ExpertActivation activation, const std::string& what) {
    for (const Kernels kernels : kBoth) {
      const Tensor x = testing::randn({3, 22}, at::kDouble), weights = testing::rand({3}, at::kDouble);
      testing::expect_gradients_match_differences(
          [&](const std::vector<Tensor>& in) { return expert_activation(in[0], in[1], activation, kernels); },
          [&](const Tensor& dy, const std::vector<Tensor>& in) -> std::vector<Tensor> {
            const auto [dx, dweights] = expert_activation_backward(dy, in[0], in[1], activation, kernels);
            return {dx, dweights};
          },
          {x, weights}, what);
      testing::expect_gradients_match_differences(
          [&](const std::vector<Tensor>& in) { return expert_activation(in[0], {}, activation, kernels); },
          [&](const Tensor& dy, const std::vector<Tensor>& in) -> std::vector<Tensor> {
            return {std::get<0>(expert_activation_backward(dy, in[0], {}, activation, kernels))};
          },
          {x}, what + " without weights");
    }
  });
}

TEST(ExpertActivations, NumbersDoNotDependOnTheNumberOfThreads) {
  at::manual_seed(4);
  const int before = at::get_num_threads();
  const Tensor x = testing::randn({300, 2 * 130}).to(at::kBFloat16), dy = testing::randn({300, 130}).to(at::kBFloat16);
  const Tensor weights = testing::rand({300});
  std::vector<Tensor> first;
  for (const int threads : {1, 2, 3, 7}) {
    at::set_num_threads(threads);
    const auto [dx, dw] = expert_activation_backward(dy, x, weights);
    const std::vector<Tensor> result{expert_activation(x, weights), dx, dw};
    if (first.empty()) first = result;
    for (size_t i = 0; i < result.size(); ++i) EXPECT_TRUE(at::equal(result[i], first[i])) << "result " << i;
  }
  at::set_num_threads(before);
}

TEST(ExpertActivations, WrongArgumentsAreNamed) {
  EXPECT_THROW(expert_activation(testing::ones({2, 3})), UserError);
  EXPECT_THROW(expert_activation(testing::ones({2, 4}), testing::ones({3})), UserError);
  EXPECT_THROW(expert_activation(testing::ones({2, 4}), testing::ones({2}, at::kDouble)), UserError);
  EXPECT_THROW(expert_activation(testing::ones({4, 2}).t()), UserError);
  EXPECT_THROW(expert_activation_backward(testing::ones({2, 4}), testing::ones({2, 4})), UserError);
  EXPECT_THROW(expert_activation(testing::ones({2, 4}), {}, {.limit = 7}), InternalError);
  EXPECT_THROW(expert_activation(testing::ones({2, 4}), {}, {ActivationKind::kQuickGelu, false}), InternalError);
}

MEGALITH_ON_EVERY_DEVICE(ExpertActivations);

}  // namespace
}  // namespace megalith::ops::expert_activation_test
