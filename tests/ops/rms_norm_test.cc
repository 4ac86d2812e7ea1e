// rms_norm: the CPU kernel against the reference and against float64, its gradients against finite differences.
#include "ops/rms_norm/rms_norm.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/error.h"
#include "support/dtypes.h"
#include "support/gradients.h"
#include "support/on_device.h"
#include "support/tensor_near.h"

namespace megalith::ops::rms_norm_test {
namespace {

using at::Tensor;
using RmsNorm = testing::OnDevice;
using AddRmsNorm = testing::OnDevice;

struct Shape {
  int64_t rows, columns;
};
// One element, primes, less than a register, a register and a tail, many blocks of rows.
constexpr Shape kShapes[] = {{1, 1}, {3, 7}, {2, 64}, {5, 131}, {97, 48}, {200, 257}};

TEST_P(RmsNorm, ForwardMatchesReferenceAndFloat64) {
  at::manual_seed(1);
  for (const auto& [rows, columns] : kShapes) {
    for (const at::ScalarType dtype : testing::kFloatingDtypes) {
      const Tensor x = (testing::randn({rows, columns}) * 3).to(dtype),
                   weight = (1 + testing::randn({columns}) / 4).to(dtype);
      const auto [y, inv_rms] = rms_norm_forward(x, weight, 1e-5);
      ASSERT_EQ(y.scalar_type(), dtype);
      const auto what = fmt::format("({}, {}) {}", rows, columns, c10::toString(dtype));
      const Tensor exact =
          std::get<0>(rms_norm_forward(x.to(at::kDouble), weight.to(at::kDouble), 1e-5, Kernels::kReference));
      // Two roundings, of n and of the product, each half a unit; float's statistics add a few units of float.
      const double unit = testing::unit_of(dtype), step = 2 * testing::smallest_step_of(dtype);  // |weight| < 3
      EXPECT_TENSOR_NEAR(
          y, exact,
          {.abs = 1e-30 + step, .rel = 1.1 * unit + (dtype == at::kDouble ? 8 * unit : 0x1p-20), .what = what});
      const auto [y_ref, inv_rms_ref] = rms_norm_forward(x, weight, 1e-5, Kernels::kReference);
      // The same roundings; a statistic that differs in its last bit may push either over an edge.
      EXPECT_TENSOR_NEAR(y, y_ref,
                         {.abs = 2 * step,
                          .rel = 2.1 * unit + (dtype == at::kDouble ? 8 * unit : 0x1p-20),
                          .what = what + " reference"});
      EXPECT_TENSOR_NEAR(inv_rms, inv_rms_ref, {.rel = dtype == at::kDouble ? 1e-14 : 1e-6, .what = what + " inv_rms"});
    }
  }
}

TEST_P(RmsNorm, BackwardMatchesReferenceAndFloat64) {
  at::manual_seed(2);
  for (const auto& [rows, columns] : kShapes) {
    for (const at::ScalarType dtype : testing::kFloatingDtypes) {
      const Tensor x = (testing::randn({rows, columns}) * 3).to(dtype),
                   weight = (1 + testing::randn({columns}) / 4).to(dtype);
      const Tensor dy = testing::randn({rows, columns}).to(dtype);
      const auto [y, inv_rms] = rms_norm_forward(x, weight, 1e-5);
      const auto what = fmt::format("({}, {}) {}", rows, columns, c10::toString(dtype));
      const auto [dx, dweight] = rms_norm_backward(dy, x, weight, inv_rms);
      const auto [dx_ref, dweight_ref] = rms_norm_backward(dy, x, weight, inv_rms, Kernels::kReference);
      const Tensor x64 = x.to(at::kDouble), weight64 = weight.to(at::kDouble), dy64 = dy.to(at::kDouble);
      const auto [y64, inv_rms64] = rms_norm_forward(x64, weight64, 1e-5, Kernels::kReference);
      const auto [dx64, dweight64] = rms_norm_backward(dy64, x64, weight64, inv_rms64, Kernels::kReference);
      const double unit = testing::unit_of(dtype), wide = dtype == at::kDouble ? 1e-14 : 1e-5;
      // dx is rounded once from float; cancellation in g - n mean(g n) is bounded by the largest element.
      EXPECT_TENSOR_NEAR(dx, dx64, {.abs = wide, .rel = unit, .rel_to_max = wide, .what = what + " dx"});
      EXPECT_TENSOR_NEAR(dx, dx_ref, {.abs = wide, .rel = unit, .rel_to_max = wide, .what = what + " dx reference"});
      ASSERT_EQ(dweight.scalar_type(), dtype == at::kDouble ? at::kDouble : at::kFloat);
      // Each of the terms |dy| n < 5 * 5 carries half a unit from the rounding of n.
      EXPECT_TENSOR_NEAR(dweight, dweight64,
                         {.abs = 25 * unit * std::sqrt(rows), .rel_to_max = wide, .what = what + " dweight"});
      // A statistic that differs in its last bit changes some roundings of n by a whole unit.
      EXPECT_TENSOR_NEAR(dweight, dweight_ref,
                         {.abs = 25 * unit, .rel_to_max = wide, .what = what + " dweight reference"});
    }
  }
}

TEST_P(RmsNorm, GradientMatchesFiniteDifferences) {
  at::manual_seed(3);
  for (const Kernels kernels : {Kernels::kFused, Kernels::kReference}) {
    const auto forward = [kernels](const std::vector<Tensor>& in) {
      return std::get<0>(rms_norm_forward(in[0], in[1], 1e-3, kernels));
    };
    const auto backward = [kernels](const Tensor& dy, const std::vector<Tensor>& in) -> std::vector<Tensor> {
      const Tensor inv_rms = std::get<1>(rms_norm_forward(in[0], in[1], 1e-3, kernels));
      const auto [dx, dweight] = rms_norm_backward(dy, in[0], in[1], inv_rms, kernels);
      return {dx, dweight};
    };
    testing::expect_gradients_match_differences(
        forward, backward, {testing::randn({3, 11}, at::kDouble), testing::randn({11}, at::kDouble)},
        kernels == Kernels::kFused ? "fused" : "reference");
  }
}

TEST_P(AddRmsNorm, EqualsTheTwoStepsItFuses) {
  at::manual_seed(4);
  for (const auto& [rows, columns] : kShapes) {
    for (const at::ScalarType dtype : testing::kFloatingDtypes) {
      for (const Kernels kernels : {Kernels::kFused, Kernels::kReference}) {
        const auto what = fmt::format("({}, {}) {}", rows, columns, c10::toString(dtype));
        const Tensor x = testing::randn({rows, columns}).to(dtype),
                     residual = testing::randn({rows, columns}).to(dtype);
        const Tensor weight = (1 + testing::randn({columns}) / 4).to(dtype);
        const auto [y, sum, inv_rms] = add_rms_norm_forward(x, residual, weight, 1e-5, kernels);
        EXPECT_TENSOR_NEAR(sum, x + residual, {.what = what + " sum"});
        const auto [y_alone, inv_rms_alone] = rms_norm_forward(sum, weight, 1e-5, kernels);
        EXPECT_TENSOR_NEAR(y, y_alone, {.what = what + " y"});
        EXPECT_TENSOR_NEAR(inv_rms, inv_rms_alone, {.what = what + " inv_rms"});

        const Tensor dy = testing::randn({rows, columns}).to(dtype), dsum = testing::randn({rows, columns}).to(dtype);
        const auto [dx, dweight] = add_rms_norm_backward(dy, dsum, sum, weight, inv_rms, kernels);
        const auto [dx_alone, dweight_alone] = rms_norm_backward(dy, sum, weight, inv_rms, kernels);
        EXPECT_TENSOR_NEAR(dweight, dweight_alone, {.what = what + " dweight"});
        // One rounding here, two there: of the part and of the sum of parts below 8.
        EXPECT_TENSOR_NEAR(dx, dx_alone.to(at::kDouble) + dsum.to(at::kDouble),
                           {.abs = 8 * testing::unit_of(dtype), .what = what + " dx"});
      }
    }
  }
}

TEST(RmsNorm, WeightGradientDoesNotDependOnTheNumberOfThreads) {
  at::manual_seed(5);
  const Tensor x = testing::randn({333, 129}), weight = testing::randn({129}), dy = testing::randn({333, 129});
  const Tensor inv_rms = std::get<1>(rms_norm_forward(x, weight, 1e-5));
  const int before = at::get_num_threads();
  std::vector<Tensor> results;
  for (const int threads : {1, 2, 3, 7}) {
    at::set_num_threads(threads);
    results.push_back(std::get<1>(rms_norm_backward(dy, x, weight, inv_rms)));
  }
  at::set_num_threads(before);
  for (const Tensor& result : results) EXPECT_TRUE(at::equal(result, results[0]));
}

TEST_P(RmsNorm, NoRowsGiveNoGradient) {
  const Tensor x = testing::zeros({0, 5}), weight = testing::ones({5});
  const auto [y, inv_rms] = rms_norm_forward(x, weight, 1e-5);
  EXPECT_EQ(y.sizes(), x.sizes());
  EXPECT_TENSOR_NEAR(std::get<1>(rms_norm_backward(x, x, weight, inv_rms)), testing::zeros({5}));
}

TEST(RmsNorm, WrongArgumentsAreNamed) {
  const Tensor x = testing::ones({2, 6}), weight = testing::ones({6});
  EXPECT_THROW(rms_norm_forward(x, testing::ones({5}), 1e-5), UserError);
  EXPECT_THROW(rms_norm_forward(x, weight.to(at::kBFloat16), 1e-5), UserError);
  EXPECT_THROW(rms_norm_forward(x.to(at::kInt), weight, 1e-5), UserError);
  EXPECT_THROW(rms_norm_forward(testing::ones({6, 2}).t(), weight, 1e-5), UserError);
  EXPECT_THROW(rms_norm_forward(testing::ones({2, 3, 6}), weight, 1e-5), UserError);
  try {
    rms_norm_forward(x, testing::ones({5}), 1e-5);
  } catch (const UserError& error) {
    EXPECT_EQ(error.message(), "rms_norm_forward: weight has shape (5), but must be (6)");
  }
}

MEGALITH_ON_EVERY_DEVICE(RmsNorm);
MEGALITH_ON_EVERY_DEVICE(AddRmsNorm);

}  // namespace
}  // namespace megalith::ops::rms_norm_test
