// swiglu: the CPU kernel against the reference and against float64, its gradient against finite differences.
#include "ops/swiglu/swiglu.h"

#include <gtest/gtest.h>

#include <vector>

#include "core/error.h"
#include "support/dtypes.h"
#include "support/gradients.h"
#include "support/on_device.h"
#include "support/tensor_near.h"

namespace megalith::ops::swiglu_test {
namespace {

using at::Tensor;
using Swiglu = testing::OnDevice;
using testing::smallest_step_of;
using testing::unit_of;

struct Shape {
  int64_t rows, columns;
};
constexpr Shape kShapes[] = {{1, 1}, {3, 7}, {2, 64}, {5, 131}, {67, 48}};

TEST_P(Swiglu, ForwardMatchesReferenceAndFloat64) {
  at::manual_seed(1);
  for (const auto& [rows, columns] : kShapes) {
    for (const at::ScalarType dtype : testing::kFloatingDtypes) {
      const Tensor x = (testing::randn({rows, 2 * columns}) * 3).to(dtype);
      const Tensor y = swiglu(x);
      ASSERT_EQ(y.scalar_type(), dtype);
      const auto what = fmt::format("({}, {}) {}", rows, columns, c10::toString(dtype));
      // silu rounded to half of fp16's smallest step, times |up| < 15.
      const double unit = unit_of(dtype), step = 1e-6 * unit + 8 * smallest_step_of(dtype);
      // Two roundings of half a unit each, plus a few units of the exponential where it is computed in the same dtype.
      const double rel = unit * (dtype == at::kFloat || dtype == at::kDouble ? 8 : 1.1);
      EXPECT_TENSOR_NEAR(y, swiglu(x.to(at::kDouble), Kernels::kReference), {.abs = step, .rel = rel, .what = what});
      EXPECT_TENSOR_NEAR(y, swiglu(x, Kernels::kReference), {.abs = step, .rel = 2 * rel, .what = what + " reference"});
    }
  }
}

TEST_P(Swiglu, BackwardMatchesReferenceAndFloat64) {
  at::manual_seed(2);
  for (const auto& [rows, columns] : kShapes) {
    for (const at::ScalarType dtype : testing::kFloatingDtypes) {
      const Tensor x = (testing::randn({rows, 2 * columns}) * 3).to(dtype),
                   dy = testing::randn({rows, columns}).to(dtype);
      const Tensor dx = swiglu_backward(dy, x);
      const auto what = fmt::format("({}, {}) {}", rows, columns, c10::toString(dtype));
      const double unit = unit_of(dtype);
      // Two roundings; near the zero of 1 + g (1 - s), at g = -1.28, terms of order one cancel in the computing dtype.
      const double wide = dtype == at::kDouble ? 1e-14 : 2e-6;  // 40 times fp16's smallest step
      const testing::Tolerance tolerance{.abs = wide * 20, .rel = 1.1 * unit + wide, .what = what};
      EXPECT_TENSOR_NEAR(dx, swiglu_backward(dy.to(at::kDouble), x.to(at::kDouble), Kernels::kReference), tolerance);
      EXPECT_TENSOR_NEAR(dx, swiglu_backward(dy, x, Kernels::kReference),
                         {.abs = wide * 20, .rel = 2 * unit, .what = what});
    }
  }
}

TEST_P(Swiglu, LargeGatesNeitherOverflowNorTurnIntoNan) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const Tensor gate = testing::tensor({-1e30, -1e4, -200., -90., -80., 80., 90., 200., 1e4, 1e30}, at::kDouble)
                            .to(dtype)
                            .view({1, -1});
    const Tensor x = at::cat({gate, at::full_like(gate, 2)}, -1);
    // silu is 0 below (1e-33 at -80) and the gate itself above.
    EXPECT_TENSOR_NEAR(swiglu(x), 2 * at::relu(gate), {.abs = 1e-30, .rel = 1e-6});
    const Tensor dgate = swiglu_backward(at::ones_like(gate), x).narrow(1, 0, 10);
    EXPECT_TENSOR_NEAR(dgate, 2 * (gate > 0).to(dtype), {.abs = 1e-30, .rel = 1e-6});
  }
}

TEST_P(Swiglu, GradientMatchesFiniteDifferences) {
  at::manual_seed(3);
  for (const Kernels kernels : {Kernels::kFused, Kernels::kReference}) {
    const auto forward = [kernels](const std::vector<Tensor>& in) { return swiglu(in[0], kernels); };
    const auto backward = [kernels](const Tensor& dy, const std::vector<Tensor>& in) -> std::vector<Tensor> {
      return {swiglu_backward(dy, in[0], kernels)};
    };
    testing::expect_gradients_match_differences(forward, backward, {testing::randn({3, 22}, at::kDouble)},
                                                kernels == Kernels::kFused ? "fused" : "reference");
  }
}

TEST(Swiglu, WrongArgumentsAreNamed) {
  EXPECT_THROW(swiglu(testing::ones({2, 3})), UserError);
  EXPECT_THROW(swiglu(testing::ones({4, 2}).t()), UserError);
  EXPECT_THROW(swiglu_backward(testing::ones({2, 3}), testing::ones({2, 4})), UserError);
  EXPECT_THROW(swiglu_backward(testing::ones({2, 2}, at::kDouble), testing::ones({2, 4})), UserError);
}

MEGALITH_ON_EVERY_DEVICE(Swiglu);

}  // namespace
}  // namespace megalith::ops::swiglu_test
