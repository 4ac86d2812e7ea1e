// Microscaled operands are what loops over blocks and tables of numbers give, and products those of their values.
#include "nn/mx_recipe.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "nn/fp8_recipe.h"
#include "support/tensor_near.h"

namespace megalith {
namespace {

// The format's numbers from 0 on, by their codes: an even code has an even significand.
std::vector<double> numbers_of(const MxFormat& format) {
  std::vector<double> numbers;
  const double last = std::ldexp(1, static_cast<int>(format.digits));
  for (int exponent = static_cast<int>(format.least); numbers.empty() || numbers.back() < format.largest; ++exponent) {
    for (double digit = numbers.empty() ? 0 : last; digit < 2 * last; ++digit) {
      numbers.push_back(digit / last * std::ldexp(1, exponent));
      if (numbers.back() == format.largest) break;
    }
  }
  return numbers;
}

double nearest(double x, const std::vector<double>& numbers) {
  size_t best = 0;
  for (size_t i = 1; i < numbers.size(); ++i) {
    const double now = std::abs(std::abs(x) - numbers[i]), before = std::abs(std::abs(x) - numbers[best]);
    if (now < before || (now == before && i % 2 == 0)) best = i;
  }
  return std::copysign(numbers[best], x);
}

// As Primus-Turbo's kernels do, by the bits of the largest size.
double scale_of(float amax, const MxFormat& format) {
  const uint32_t bits = std::bit_cast<uint32_t>(amax) + (1U << (22 - format.digits));
  return std::ldexp(1, std::max(static_cast<int>(bits >> 23) - 127 - static_cast<int>(format.largest_power), -127));
}

// Blocks of so many rows and columns, in loops.
at::Tensor in_loops(const at::Tensor& x, int64_t rows, int64_t columns, const MxFormat& format) {
  const std::vector<double> numbers = numbers_of(format);
  const at::Tensor out = at::zeros_like(x);
  for (int64_t r = 0; r < x.size(0); r += rows) {
    for (int64_t c = 0; c < x.size(1); c += columns) {
      const auto block = [&](const at::Tensor& of) {
        return of.narrow(0, r, std::min(rows, x.size(0) - r)).narrow(1, c, std::min(columns, x.size(1) - c));
      };
      const double scale = scale_of(block(x).abs().max().item<float>(), format);
      const at::Tensor from = block(x), to = block(out);
      for (int64_t i = 0; i < from.size(0); ++i)
        for (int64_t k = 0; k < from.size(1); ++k)
          to[i][k] = nearest(from[i][k].item<double>() / scale, numbers) * scale;
    }
  }
  return out;
}

at::Tensor some(int64_t rows, int64_t columns, double seed) {
  const at::Tensor i = at::arange(rows * columns, at::kDouble);
  return (at::sin(0.37 * i * i + seed) * at::exp(4 * at::cos(1.7 * i + seed))).to(at::kBFloat16).view({rows, columns});
}

TEST(MxRecipe, BlocksRoundAsLoopsDo) {
  EXPECT_EQ(numbers_of(kMxE2m1), (std::vector<double>{0, 0.5, 1, 1.5, 2, 3, 4, 6}));
  EXPECT_EQ(numbers_of(kMxE4m3).size(), 127U);
  EXPECT_EQ(numbers_of(kMxE5m2).size(), 124U);
  for (const MxFormat& format : {kMxE4m3, kMxE5m2, kMxE2m1}) {
    at::Tensor x = some(70, 100, 1);
    x.select(0, 3).zero_();
    x.select(0, 4).mul_(1e-37);
    // Ties, and largest sizes on both sides of a carry.
    for (int64_t k = 0; k < 100; ++k) x[5][k] = 0.03125 * static_cast<double>(k);
    x[5][31] = 1.9375, x[5][63] = 1.9297, x[5][95] = 1.75;
    EXPECT_TENSOR_NEAR(mx_along_rows(x, format), in_loops(x, 1, kMxBlock, format), {.what = "along rows"});
    EXPECT_TENSOR_NEAR(mx_in_squares(x, format), in_loops(x, kMxBlock, kMxBlock, format), {.what = "squares"});
    EXPECT_TENSOR_NEAR(mx_down_columns(x, format, false), in_loops(x, kMxBlock, 1, format), {.what = "down columns"});
    // A number that is not finite is seen, and only its block's neighbours stay as they are.
    x[0][1] = std::numeric_limits<float>::infinity();
    const at::Tensor rounded = mx_along_rows(x, format);
    EXPECT_TRUE(at::equal(rounded[0].narrow(0, 0, 32), x[0].narrow(0, 0, 32)));
    EXPECT_TRUE(rounded[0].narrow(0, 32, 68).isfinite().all().item<bool>());
  }
}

// Turned by plain sums and differences: H[i][k] is 1 or -1 by the common bits of i and k.
TEST(MxRecipe, TurnedColumnsGiveTheSameProduct) {
  const at::Tensor x = some(40, 5, 2).to(at::kFloat), turned = at::zeros({48, 5});
  for (int64_t row = 0; row < 48; ++row)
    for (int64_t k = 0; k < kHadamardSize; ++k) {
      const int64_t from = row / kHadamardSize * kHadamardSize + k;
      const bool is_odd = std::popcount(static_cast<uint64_t>(row % kHadamardSize & k)) % 2 == 1;
      if (from < 40) turned[row] += x[from] * (is_odd ? -0.25 : 0.25);
    }
  EXPECT_TENSOR_NEAR(mx_down_columns(x, kMxE2m1, true), in_loops(turned, kMxBlock, 1, kMxE2m1),
                     {.what = "turned and rounded"});
  EXPECT_TENSOR_NEAR(turned.t().mm(turned), x.t().mm(x), {.rel_to_max = 1e-5, .what = "turned product"});
}

TEST(MxRecipe, ProductsAreThoseOfRoundedOperands) {
  Fp8Options mxfp8{.fp8_format = "hybrid", .fp8_recipe = "mxfp8"}, mxfp4{.fp4_format = "e2m1", .fp4_recipe = "mxfp4"};
  for (const Fp8Options& options : {mxfp8, mxfp4}) {
    const bool is_four = options.fp4_format.has_value();
    const MxFormat format = is_four ? kMxE2m1 : kMxE4m3, of_gradients = is_four ? kMxE2m1 : kMxE5m2;
    const auto recipe = make_recipe(options, Kernels::kReference);
    const at::Tensor x = some(64, 96, 3).to(at::kFloat), w = some(32, 96, 4).to(at::kFloat);
    const at::Tensor dy = some(64, 32, 5).to(at::kFloat);
    const Operand taken = recipe->take(x, OperandRole::kInput, {}), weight = recipe->take(w, OperandRole::kWeight, {});
    const Operand gradient = recipe->take(dy, OperandRole::kGradient, {});
    const at::Tensor rounded_w = in_loops(w, kMxBlock, kMxBlock, format);
    const auto expect_near = [](const at::Tensor& a, const at::Tensor& b, const char* what) {
      EXPECT_TENSOR_NEAR(a, b, {.rel_to_max = 1e-5, .what = what});  // sums of up to 96 in fp32
    };
    expect_near(recipe->forward(taken, weight, {}), in_loops(x, 1, kMxBlock, format).mm(rounded_w.t()), "y");
    expect_near(recipe->dgrad(gradient, weight), in_loops(dy, 1, kMxBlock, of_gradients).mm(rounded_w), "dx");
    const at::Tensor dw = at::zeros({32, 96});
    recipe->wgrad_(dw, gradient, recipe->keep({x, {}}, taken, {}).take(), /*accumulate=*/false);
    const at::Tensor dy_down = mx_down_columns(dy, of_gradients, is_four), x_down = mx_down_columns(x, format, is_four);
    expect_near(dw, dy_down.t().mm(x_down), "dw");
    // Three digits, or one: the weight's gradient is still that of the numbers.
    EXPECT_TENSOR_NEAR(dw, dy.t().mm(x), {.rel_to_max = is_four ? 0.5 : 0.2, .what = "dw of unrounded operands"});
  }
}

}  // namespace
}  // namespace megalith
