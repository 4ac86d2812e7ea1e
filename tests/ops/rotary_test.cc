// rotary: the CPU kernel against a loop in double, the reference and finite differences, both layouts, strided inputs.
#include "ops/rotary/rotary.h"

#include <gtest/gtest.h>

#include <vector>

#include "core/error.h"
#include "support/dtypes.h"
#include "support/gradients.h"
#include "support/on_device.h"
#include "support/tensor_near.h"

namespace megalith::ops::rotary_test {
namespace {

using at::Tensor;
using Rotary = testing::OnDevice;

struct Case {
  int64_t b, s, n, d, r;
};
// One pair; primes; less than a register; part of the channels; a register and a tail.
constexpr Case kCases[] = {
    {1, 1, 1, 2, 2}, {2, 3, 5, 14, 14}, {1, 4, 2, 10, 6}, {2, 5, 3, 128, 128}, {1, 7, 2, 96, 74}};

struct Angles {
  Tensor cos, sin;
};
Angles random_angles(int64_t b, const Case& c, at::ScalarType dtype) {
  const Tensor angle = testing::rand({b, c.s, c.r / 2}, at::kDouble) * 6.28;
  const at::ScalarType wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
  return {angle.cos().to(wide), angle.sin().to(wide)};
}

// The formula of the header, element by element.
Tensor turned_by_loop(const Tensor& x, const Angles& angles, bool is_interleaved) {
  const at::ScalarType dtype = x.scalar_type();
  const Tensor in = x.to(at::kCPU, at::kDouble).contiguous(), out = in.clone();
  const Tensor cos = angles.cos.to(dtype).to(at::kCPU, at::kDouble).expand({x.size(0), -1, -1}).contiguous();
  const Tensor sin = angles.sin.to(dtype).to(at::kCPU, at::kDouble).expand({x.size(0), -1, -1}).contiguous();
  const auto from = in.accessor<double, 4>();
  auto to = out.accessor<double, 4>();
  const auto c = cos.accessor<double, 3>(), s = sin.accessor<double, 3>();
  const int64_t half = cos.size(2);
  for (int64_t b = 0; b < x.size(0); ++b) {
    for (int64_t p = 0; p < x.size(1); ++p) {
      for (int64_t head = 0; head < x.size(2); ++head) {
        for (int64_t i = 0; i < half; ++i) {
          const int64_t first = is_interleaved ? 2 * i : i, second = is_interleaved ? 2 * i + 1 : i + half;
          const double u = from[b][p][head][first], v = from[b][p][head][second];
          to[b][p][head][first] = u * c[b][p][i] - v * s[b][p][i];
          to[b][p][head][second] = v * c[b][p][i] + u * s[b][p][i];
        }
      }
    }
  }
  return out;
}

TEST_P(Rotary, MatchesTheFormulaInBothLayouts) {
  at::manual_seed(1);
  for (const Case& c : kCases) {
    for (const at::ScalarType dtype : testing::kFloatingDtypes) {
      for (const bool is_interleaved : {false, true}) {
        for (const int64_t angle_batch : {int64_t{1}, c.b}) {
          const Tensor x = testing::randn({c.b, c.s, c.n, c.d}).to(dtype);
          const Angles angles = random_angles(angle_batch, c, dtype);
          const Tensor expected = turned_by_loop(x, angles, is_interleaved);
          for (const Kernels kernels : {Kernels::kFused, Kernels::kReference}) {
            const Tensor y = rotary(x, angles.cos, angles.sin, is_interleaved, kernels);
            ASSERT_EQ(y.scalar_type(), dtype);
            ASSERT_TRUE(y.is_contiguous());
            // One rounding of the result (half a unit) after arithmetic on numbers below 8 in float or double.
            const double wide = dtype == at::kDouble ? 1e-15 : 1e-6;
            EXPECT_TENSOR_NEAR(
                y, expected,
                {.abs = 8 * wide,
                 .rel = 0.51 * testing::unit_of(dtype),
                 .what = fmt::format("d {} r {} {} interleaved {} angles {} {}", c.d, c.r, c10::toString(dtype),
                                     is_interleaved, angle_batch, kernels == Kernels::kFused ? "fused" : "reference")});
          }
        }
      }
    }
  }
}

TEST_P(Rotary, ReadsASliceOfAFusedTensor) {
  at::manual_seed(2);
  // (b, s, q|k|v of 2 heads) with 4 channels a head: the middle slice, heads first in memory for a second case
  const Tensor fused = testing::randn({2, 3, 6, 8}), heads_first = testing::randn({2, 6, 3, 8});
  const Case c{2, 3, 2, 8, 8};
  const Angles angles = random_angles(2, c, at::kFloat);
  for (const Tensor& x : {fused.narrow(2, 2, 2), heads_first.transpose(1, 2).narrow(2, 4, 2)}) {
    ASSERT_FALSE(x.is_contiguous());
    EXPECT_TENSOR_NEAR(rotary(x, angles.cos, angles.sin), rotary(x.contiguous(), angles.cos, angles.sin));
  }
}

TEST_P(Rotary, BackwardTurnsBack) {
  at::manual_seed(3);
  for (const bool is_interleaved : {false, true}) {
    const Case c{2, 3, 5, 20, 14};
    const Angles angles = random_angles(1, c, at::kDouble);
    const Tensor x = testing::randn({c.b, c.s, c.n, c.d}, at::kDouble);
    for (const Kernels kernels : {Kernels::kFused, Kernels::kReference}) {
      const Tensor y = rotary(x, angles.cos, angles.sin, is_interleaved, kernels);
      EXPECT_TENSOR_NEAR(rotary_backward(y, angles.cos, angles.sin, is_interleaved, kernels), x, {.abs = 1e-14});
    }
  }
}

TEST_P(Rotary, BackwardWritesIntoASliceOfAFusedGradient) {
  at::manual_seed(5);
  for (const at::ScalarType dtype : testing::kFloatingDtypes) {
    for (const bool is_interleaved : {false, true}) {
      const Case c{2, 3, 4, 10, 6};
      const Angles angles = random_angles(2, c, dtype);
      // Heads first in memory, as attention's gradients are.
      const Tensor dy = testing::randn({c.b, c.n, c.s, c.d}).to(dtype).transpose(1, 2);
      for (const Kernels kernels : {Kernels::kFused, Kernels::kReference}) {
        const Tensor fused = testing::full({c.b, c.s, c.n + 3, c.d}, 7, dtype);
        rotary_backward_into(dy, angles.cos, angles.sin, is_interleaved, fused.narrow(2, 1, c.n), kernels);
        EXPECT_TENSOR_NEAR(fused.narrow(2, 1, c.n),
                           rotary_backward(dy, angles.cos, angles.sin, is_interleaved, kernels));
        // Its neighbours stay.
        for (const int64_t head : {int64_t{0}, c.n + 1, c.n + 2}) {
          EXPECT_TRUE((fused.select(2, head) == 7).all().item<bool>()) << "head " << head;
        }
      }
    }
  }
}

TEST_P(Rotary, GradientMatchesFiniteDifferences) {
  at::manual_seed(4);
  const Case c{1, 2, 3, 10, 6};
  const Angles angles = random_angles(1, c, at::kDouble);
  for (const Kernels kernels : {Kernels::kFused, Kernels::kReference}) {
    for (const bool is_interleaved : {false, true}) {
      const auto forward = [&](const std::vector<Tensor>& in) {
        return rotary(in[0], angles.cos, angles.sin, is_interleaved, kernels);
      };
      const auto backward = [&](const Tensor& dy, const std::vector<Tensor>&) -> std::vector<Tensor> {
        return {rotary_backward(dy, angles.cos, angles.sin, is_interleaved, kernels)};
      };
      testing::expect_gradients_match_differences(forward, backward,
                                                  {testing::randn({c.b, c.s, c.n, c.d}, at::kDouble)},
                                                  kernels == Kernels::kFused ? "fused" : "reference");
    }
  }
}

TEST(Rotary, WrongArgumentsAreNamed) {
  const Tensor x = testing::ones({2, 3, 1, 8}), cos = testing::ones({1, 3, 4});
  EXPECT_THROW(rotary(x, testing::ones({1, 3, 5}), testing::ones({1, 3, 5})), UserError);  // more angles than pairs
  EXPECT_THROW(rotary(x, testing::ones({1, 2, 4}), testing::ones({1, 2, 4})), UserError);
  EXPECT_THROW(rotary(x, testing::ones({3, 3, 4}), testing::ones({3, 3, 4})), UserError);
  EXPECT_THROW(rotary(x, cos, testing::ones({1, 3, 3})), UserError);
  EXPECT_THROW(rotary(x, cos.to(at::kBFloat16), cos), UserError);
  EXPECT_THROW(rotary(testing::ones({2, 3, 8, 4}).transpose(2, 3), cos, cos), UserError);
  EXPECT_THROW(rotary_backward_into(x, cos, cos, false, testing::ones({2, 3, 2, 8})), UserError);
  EXPECT_THROW(rotary_backward_into(x, cos, cos, false, testing::ones({2, 3, 1, 8}, at::kDouble)), UserError);
  EXPECT_THROW(rotary_backward_into(x, cos, cos, false, testing::ones({2, 3, 1, 16}).slice(3, 0, 16, 2)), UserError);
}

MEGALITH_ON_EVERY_DEVICE(Rotary);

}  // namespace
}  // namespace megalith::ops::rotary_test
