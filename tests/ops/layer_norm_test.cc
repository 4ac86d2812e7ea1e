// layer_norm: the CPU kernel against the reference, ATen's and float64, its gradients against finite differences.
#include "ops/layer_norm/layer_norm.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/error.h"
#include "support/dtypes.h"
#include "support/gradients.h"
#include "support/on_device.h"
#include "support/tensor_near.h"

namespace megalith::ops::layer_norm_test {
namespace {

using at::Tensor;
using LayerNorm = testing::OnDevice;
using AddLayerNorm = testing::OnDevice;

struct Shape {
  int64_t rows, columns;
};
// One element, primes, less than a register, a register and a tail, many blocks of rows.
constexpr Shape kShapes[] = {{1, 1}, {3, 7}, {2, 64}, {5, 131}, {97, 48}, {200, 257}};

struct Inputs {
  Tensor x, weight, bias;
};

Inputs random_inputs(const Shape& shape, at::ScalarType dtype) {
  return {(testing::randn({shape.rows, shape.columns}) * 3 + 1).to(dtype),
          (1 + testing::randn({shape.columns}) / 4).to(dtype), testing::randn({shape.columns}).to(dtype)};
}

std::string describe(const Shape& shape, at::ScalarType dtype) {
  return fmt::format("({}, {}) {}", shape.rows, shape.columns, c10::toString(dtype));
}

// Error of statistics in float for an element of order 10; float64 inputs have them in float64.
double wide_error(at::ScalarType dtype) { return dtype == at::kDouble ? 1e-13 : 1e-5; }

TEST_P(LayerNorm, ForwardMatchesReferenceAtenAndFloat64) {
  at::manual_seed(1);
  for (const Shape& shape : kShapes) {
    for (const at::ScalarType dtype : testing::kFloatingDtypes) {
      const auto [x, weight, bias] = random_inputs(shape, dtype);
      const auto what = describe(shape, dtype);
      const auto [y, mean, inv_std] = layer_norm_forward(x, weight, bias, 1e-5);
      ASSERT_EQ(y.scalar_type(), dtype);
      const Tensor exact =
          std::get<0>(layer_norm_forward(x.to(at::kDouble), weight.to(at::kDouble), bias.to(at::kDouble), 1e-5,
                                         /*zero_centered_weight=*/false, Kernels::kReference));
      // y is rounded once; the product and the bias may cancel, to the error of the statistics.
      const double half = 0.51 * testing::unit_of(dtype), wide = wide_error(dtype) + testing::smallest_step_of(dtype);
      EXPECT_TENSOR_NEAR(y, exact, {.abs = wide, .rel = half, .what = what});
      const auto [y_ref, mean_ref, inv_std_ref] =
          layer_norm_forward(x, weight, bias, 1e-5, /*zero_centered_weight=*/false, Kernels::kReference);
      EXPECT_TENSOR_NEAR(y, y_ref, {.abs = wide, .rel = 2 * half, .what = what + " reference"});
      EXPECT_TENSOR_NEAR(y, at::layer_norm(x.cpu(), {shape.columns}, weight.cpu(), bias.cpu(), 1e-5),
                         {.abs = wide, .rel = 2 * half, .what = what + " ATen"});
      const double near = dtype == at::kDouble ? 1e-14 : 1e-6;
      EXPECT_TENSOR_NEAR(mean, mean_ref, {.abs = near, .rel = near, .what = what + " mean"});
      EXPECT_TENSOR_NEAR(inv_std, inv_std_ref, {.rel = near, .what = what + " inv_std"});
    }
  }
}

TEST_P(LayerNorm, BackwardMatchesReferenceAtenAndFloat64) {
  at::manual_seed(2);
  for (const Shape& shape : kShapes) {
    for (const at::ScalarType dtype : testing::kFloatingDtypes) {
      const auto [x, weight, bias] = random_inputs(shape, dtype);
      const Tensor dy = testing::randn({shape.rows, shape.columns}).to(dtype);
      const auto what = describe(shape, dtype);
      const auto [y, mean, inv_std] = layer_norm_forward(x, weight, bias, 1e-5);
      const auto [dx, dweight, dbias] = layer_norm_backward(dy, x, weight, mean, inv_std);
      ASSERT_EQ(dweight.scalar_type(), dtype == at::kDouble ? at::kDouble : at::kFloat);
      ASSERT_EQ(dbias.scalar_type(), dweight.scalar_type());
      const auto [dx_ref, dweight_ref, dbias_ref] =
          layer_norm_backward(dy, x, weight, mean, inv_std, /*zero_centered_weight=*/false, Kernels::kReference);

      const Tensor x64 = x.to(at::kDouble), weight64 = weight.to(at::kDouble), dy64 = dy.to(at::kDouble);
      const auto [y64, mean64, inv_std64] = layer_norm_forward(x64, weight64, bias.to(at::kDouble), 1e-5,
                                                               /*zero_centered_weight=*/false, Kernels::kReference);
      const auto [dx64, dweight64, dbias64] =
          at::native_layer_norm_backward(dy64, x64, {shape.columns}, mean64.unsqueeze(-1), inv_std64.unsqueeze(-1),
                                         weight64, bias.to(at::kDouble), {true, true, true});
      // dx is rounded once from float; cancellation in g - mean(g) - n mean(g n) is bounded by the largest element. A
      // row of one column has nothing but cancellation, times inv_std = 1 / sqrt(eps).
      const double half = 0.51 * testing::unit_of(dtype), wide = wide_error(dtype);
      const double remainder = wide / 20 * inv_std64.max().item<double>() + testing::smallest_step_of(dtype);
      const testing::Tolerance dx_tolerance{
          .abs = remainder, .rel = 2 * half, .rel_to_max = wide, .what = what + " dx"};
      EXPECT_TENSOR_NEAR(dx, dx64, dx_tolerance);
      EXPECT_TENSOR_NEAR(dx, dx_ref, dx_tolerance);
      const testing::Tolerance column_tolerance{.abs = wide, .rel_to_max = wide, .what = what + " column gradients"};
      EXPECT_TENSOR_NEAR(dweight, dweight64, column_tolerance);
      EXPECT_TENSOR_NEAR(dweight, dweight_ref, column_tolerance);
      EXPECT_TENSOR_NEAR(dbias, dbias64, column_tolerance);
      EXPECT_TENSOR_NEAR(dbias, dbias_ref, column_tolerance);
    }
  }
}

TEST_P(LayerNorm, GradientMatchesFiniteDifferences) {
  at::manual_seed(3);
  for (const Kernels kernels : {Kernels::kFused, Kernels::kReference}) {
    for (const bool zero_centered : {false, true}) {
      const auto forward = [&](const std::vector<Tensor>& in) {
        return layer_norm_forward(in[0], in[1], in[2], 1e-3, zero_centered, kernels);
      };
      const auto y = [&](const std::vector<Tensor>& in) { return std::get<0>(forward(in)); };
      const auto backward = [&](const Tensor& dy, const std::vector<Tensor>& in) -> std::vector<Tensor> {
        const auto [y, mean, inv_std] = forward(in);
        const auto [dx, dweight, dbias] = layer_norm_backward(dy, in[0], in[1], mean, inv_std, zero_centered, kernels);
        return {dx, dweight, dbias};
      };
      testing::expect_gradients_match_differences(
          y, backward,
          {testing::randn({3, 11}, at::kDouble), testing::randn({11}, at::kDouble), testing::randn({11}, at::kDouble)},
          fmt::format("{}, zero_centered {}", kernels == Kernels::kFused ? "fused" : "reference", zero_centered));
    }
  }
}

TEST_P(LayerNorm, ZeroCenteredWeightIsMultipliedAsOneMore) {
  at::manual_seed(4);
  for (const Shape& shape : kShapes) {
    for (const at::ScalarType dtype : testing::kFloatingDtypes) {
      for (const Kernels kernels : {Kernels::kFused, Kernels::kReference}) {
        const auto what = describe(shape, dtype);
        const auto [x, weight, bias] = random_inputs(shape, dtype);
        const Tensor dy = testing::randn({shape.rows, shape.columns}).to(dtype);
        // Sixteenths, so that weight - 1 and weight are exact in every dtype.
        const Tensor plain = (weight * 16).round() / 16, centered = plain - 1;
        const auto [y, mean, inv_std] = layer_norm_forward(x, centered, bias, 1e-5, true, kernels);
        EXPECT_TENSOR_NEAR(y, std::get<0>(layer_norm_forward(x, plain, bias, 1e-5, false, kernels)), {.what = what});
        const auto [dx, dweight, dbias] = layer_norm_backward(dy, x, centered, mean, inv_std, true, kernels);
        const auto [dx_plain, dweight_plain, dbias_plain] =
            layer_norm_backward(dy, x, plain, mean, inv_std, false, kernels);
        EXPECT_TENSOR_NEAR(dx, dx_plain, {.what = what + " dx"});
        EXPECT_TENSOR_NEAR(dweight, dweight_plain, {.what = what + " dweight"});
        EXPECT_TENSOR_NEAR(dbias, dbias_plain, {.what = what + " dbias"});
      }
    }
  }
}

// mean(x^2) - mean(x)^2 would lose every digit of the variance here. On the CPU only: the reference's mean on another
// device is as good as ATen's sum there.
TEST(LayerNorm, LargeMeanLeavesTheVarianceItsDigits) {
  at::manual_seed(5);
  for (const int64_t columns : {17, 4096, 12288}) {
    const Tensor x = 10000 + testing::randn({4, columns}), ones = testing::ones({columns}),
                 zeros = testing::zeros({columns});
    const auto [y, mean, inv_std] = layer_norm_forward(x, ones, zeros, 1e-5);
    const Tensor x64 = x.to(at::kDouble);
    // Halfway between two floats near 10000 is 2^-11 from either.
    EXPECT_TENSOR_NEAR(mean, x64.mean(-1), {.abs = 1.2 * 0x1p-11});
    EXPECT_TENSOR_NEAR(inv_std, (x64.var(-1, /*unbiased=*/false) + 1e-5).rsqrt(), {.rel = 2e-6});
    EXPECT_TENSOR_NEAR(y, at::layer_norm(x64.cpu(), {columns}, {}, {}, 1e-5), {.abs = 2e-3});
  }
  const Tensor same = testing::full({2, 1000}, 12345.678), weight = testing::ones({1000}),
               bias = testing::full({1000}, 0.25);
  const auto [y, mean, inv_std] = layer_norm_forward(same, weight, bias, 1e-5);
  EXPECT_TENSOR_NEAR(inv_std, testing::full({2}, 1 / std::sqrt(1e-5)), {.rel = 1e-6, .what = "a row without variance"});
  EXPECT_TENSOR_NEAR(y, bias.expand({2, 1000}), {.abs = 0.5, .what = "a row without variance"});  // 316 * 2^-10
}

TEST_P(AddLayerNorm, EqualsTheTwoStepsItFuses) {
  at::manual_seed(6);
  for (const Shape& shape : kShapes) {
    for (const at::ScalarType dtype : testing::kFloatingDtypes) {
      for (const Kernels kernels : {Kernels::kFused, Kernels::kReference}) {
        for (const bool zero_centered : {false, true}) {
          const auto what = describe(shape, dtype);
          const auto [x, weight, bias] = random_inputs(shape, dtype);
          const Tensor residual = at::randn_like(x);
          const auto [y, sum, mean, inv_std] =
              add_layer_norm_forward(x, residual, weight, bias, 1e-5, zero_centered, kernels);
          EXPECT_TENSOR_NEAR(sum, x + residual, {.what = what + " sum"});
          const auto [y_alone, mean_alone, inv_std_alone] =
              layer_norm_forward(sum, weight, bias, 1e-5, zero_centered, kernels);
          EXPECT_TENSOR_NEAR(y, y_alone, {.what = what + " y"});
          EXPECT_TENSOR_NEAR(mean, mean_alone, {.what = what + " mean"});
          EXPECT_TENSOR_NEAR(inv_std, inv_std_alone, {.what = what + " inv_std"});

          const Tensor dy = at::randn_like(x), dsum = at::randn_like(x);
          const auto [dx, dweight, dbias] =
              add_layer_norm_backward(dy, dsum, sum, weight, mean, inv_std, zero_centered, kernels);
          const auto [dx_alone, dweight_alone, dbias_alone] =
              layer_norm_backward(dy, sum, weight, mean, inv_std, zero_centered, kernels);
          EXPECT_TENSOR_NEAR(dweight, dweight_alone, {.what = what + " dweight"});
          EXPECT_TENSOR_NEAR(dbias, dbias_alone, {.what = what + " dbias"});
          // One rounding here, two there: of the part and of the sum.
          EXPECT_TENSOR_NEAR(dx, dx_alone.to(at::kDouble) + dsum.to(at::kDouble),
                             {.abs = 8 * testing::unit_of(dtype), .what = what + " dx"});
        }
      }
    }
  }
}

TEST(LayerNorm, ColumnGradientsDoNotDependOnTheNumberOfThreads) {
  at::manual_seed(7);
  const auto [x, weight, bias] = random_inputs({333, 129}, at::kFloat);
  const Tensor dy = testing::randn({333, 129});
  const auto [y, mean, inv_std] = layer_norm_forward(x, weight, bias, 1e-5);
  const auto [dx0, dweight0, dbias0] = layer_norm_backward(dy, x, weight, mean, inv_std);
  const int before = at::get_num_threads();
  for (const int threads : {1, 2, 3, 7}) {
    at::set_num_threads(threads);
    const auto [dx, dweight, dbias] = layer_norm_backward(dy, x, weight, mean, inv_std);
    EXPECT_TRUE(at::equal(dx, dx0) && at::equal(dweight, dweight0) && at::equal(dbias, dbias0)) << threads;
  }
  at::set_num_threads(before);
}

TEST_P(LayerNorm, NoRowsGiveNoGradient) {
  const Tensor x = testing::zeros({0, 5}), weight = testing::ones({5});
  const auto [y, mean, inv_std] = layer_norm_forward(x, weight, weight, 1e-5);
  EXPECT_EQ(y.sizes(), x.sizes());
  const auto [dx, dweight, dbias] = layer_norm_backward(x, x, weight, mean, inv_std);
  EXPECT_TENSOR_NEAR(dweight, testing::zeros({5}));
  EXPECT_TENSOR_NEAR(dbias, testing::zeros({5}));
}

TEST(LayerNorm, MetaTensorsGiveShapesWithoutData) {
  const Tensor x = at::empty({3, 5}, at::device(at::kMeta).dtype(at::kBFloat16)), weight = at::empty({5}, x.options());
  const auto [y, sum, mean, inv_std] = add_layer_norm_forward(x, x, weight, weight, 1e-5);
  const auto [dx, dweight, dbias] = add_layer_norm_backward(y, y, sum, weight, mean, inv_std);
  EXPECT_TRUE(dx.is_meta());
  EXPECT_EQ(dx.sizes(), x.sizes());
  EXPECT_EQ(mean.sizes(), at::IntArrayRef({3}));
  EXPECT_EQ(dbias.sizes(), at::IntArrayRef({5}));
  EXPECT_EQ(dbias.scalar_type(), at::kFloat);
}

TEST(LayerNorm, WrongArgumentsAreNamed) {
  const Tensor x = testing::ones({2, 6}), weight = testing::ones({6}), rows = testing::ones({2});
  EXPECT_THROW(layer_norm_forward(x, testing::ones({5}), weight, 1e-5), UserError);
  EXPECT_THROW(layer_norm_forward(x, weight, weight.to(at::kBFloat16), 1e-5), UserError);
  EXPECT_THROW(layer_norm_forward(x, weight, {}, 1e-5), UserError);
  EXPECT_THROW(layer_norm_forward(x.to(at::kInt), weight, weight, 1e-5), UserError);
  EXPECT_THROW(layer_norm_forward(testing::ones({6, 2}).t(), weight, weight, 1e-5), UserError);
  EXPECT_THROW(layer_norm_forward(testing::ones({2, 3, 6}), weight, weight, 1e-5), UserError);
  EXPECT_THROW(add_layer_norm_forward(x, testing::ones({1, 6}), weight, weight, 1e-5), UserError);
  EXPECT_THROW(layer_norm_backward(x, x, weight, testing::ones({3}), rows), UserError);
  EXPECT_THROW(layer_norm_backward(x, x, weight, rows, rows.to(at::kDouble)), UserError);
  EXPECT_THROW(add_layer_norm_backward(x, testing::ones({1, 6}), x, weight, rows, rows), UserError);
  try {
    layer_norm_forward(x, weight, testing::ones({5}), 1e-5);
    FAIL() << "a short bias passed";
  } catch (const UserError& error) {
    EXPECT_EQ(error.message(), "layer_norm_forward: bias has shape (5), but must be (6)");
  }
}

MEGALITH_ON_EVERY_DEVICE(LayerNorm);
MEGALITH_ON_EVERY_DEVICE(AddLayerNorm);

}  // namespace
}  // namespace megalith::ops::layer_norm_test
