// NF4: codes and values against a reading in float64, the scales' codes against the formula of their levels.
#include "ops/nf4/nf4.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/error.h"
#include "support/dtypes.h"
#include "support/on_device.h"
#include "support/tensor_near.h"

namespace megalith::ops::nf4_test {
namespace {

using at::Tensor;
using Nf4 = testing::OnDevice;

// create_normal_map() of bitsandbytes 0.50.2, in the digits of its table.
constexpr double kTable[16] = {-1.0,
                               -0.6961928009986877,
                               -0.5250730514526367,
                               -0.39491748809814453,
                               -0.28444138169288635,
                               -0.18477343022823334,
                               -0.09105003625154495,
                               0.0,
                               0.07958029955625534,
                               0.16093020141124725,
                               0.24611230194568634,
                               0.33791524171829224,
                               0.44070982933044434,
                               0.5626170039176941,
                               0.7229568362236023,
                               1.0};

int code_at(const Tensor& codes, int64_t row, int64_t column) {
  const int byte = codes[row][column / 2].item<uint8_t>();
  return column % 2 == 0 ? byte >> 4 : byte & 15;
}

// Everything that a packed matrix has, on the test's device.
Nf4Matrix packed(const Nf4Blocks& blocks) {
  const Nf4Scales scales = nf4_quantise_scales(blocks.scales.reshape({-1}));
  const int64_t rows = blocks.scales.size(0), width = blocks.scales.size(1);
  return {blocks.codes, scales.codes.view({rows, width}),
          testing::here((at::arange(rows, at::kLong) * width).to(at::kInt)), scales.groups,
          testing::here(nf4_scale_levels())};
}

TEST_P(Nf4, CodesAreTheNearestAndScalesTheLargest) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    for (const int64_t columns : {1, 63, 64, 65, 129, 320}) {
      Tensor x = at::randn({5, columns}).to(dtype);
      x[2].zero_();
      for (const Kernels kernels : {Kernels::kFused, Kernels::kReference}) {
        const Nf4Blocks blocks = nf4_quantise(testing::here(x), kernels);
        const Tensor codes = blocks.codes.cpu(), scales = blocks.scales.cpu();
        ASSERT_EQ(codes.sizes(), (at::IntArrayRef{5, (columns + 1) / 2}));
        ASSERT_EQ(scales.sizes(), (at::IntArrayRef{5, (columns + 63) / 64}));
        for (int64_t row = 0; row < 5; ++row) {
          for (int64_t column = 0; column < columns; ++column) {
            const int64_t first = column / 64 * 64;
            const Tensor block = x[row].narrow(0, first, std::min<int64_t>(64, columns - first)).to(at::kDouble);
            const double scale = block.abs().max().item<double>();
            ASSERT_NEAR(scales[row][column / 64].item<double>(), scale, 1e-7 * scale);
            const int code = code_at(codes, row, column);
            if (row == 2) {
              ASSERT_EQ(code, 7) << "of a block of zeros";
              continue;
            }
            const double value = x[row][column].item<double>() / scale;
            double nearest = 2;
            for (const double entry : kTable) nearest = std::min(nearest, std::abs(entry - value));
            ASSERT_LE(std::abs(kTable[code] - value), nearest + 1e-6) << value << " has code " << code;
          }
        }
      }
    }
  }
}

TEST_P(Nf4, RowsMayBeApart) {
  const Tensor wide = testing::randn({4, 200});
  const Tensor x = wide.narrow(1, 0, 130);
  const Nf4Blocks apart = nf4_quantise(x), together = nf4_quantise(x.contiguous());
  EXPECT_TRUE(at::equal(apart.codes, together.codes) && at::equal(apart.scales, together.scales));
}

TEST_P(Nf4, ValuesAreWhatCodesAndScalesSay) {
  for (const int64_t columns : {1, 63, 64, 65, 129, 320, 16448}) {
    const Tensor x = at::randn({7, columns});
    x[3].zero_();
    const Nf4Matrix matrix = packed(nf4_quantise(testing::here(x)));
    const Tensor codes = matrix.codes.cpu(), groups = matrix.groups.cpu().to(at::kDouble),
                 levels = matrix.levels.cpu().to(at::kDouble), of_blocks = matrix.scales.cpu().to(at::kLong);
    const int64_t width = of_blocks.size(1);
    const Tensor group = at::arange(7 * width, at::kLong).floor_divide(256).view({7, width});
    const Tensor scales =
        levels.index({of_blocks}) * groups.select(1, 0).index({group}) + groups.select(1, 1).index({group});
    const Tensor table = at::tensor(at::ArrayRef<double>(kTable, 16), at::kDouble);
    const Tensor nibbles = at::stack({codes.bitwise_right_shift(4), codes.bitwise_and(15)}, -1).flatten(1);
    const Tensor expected = table.index({nibbles.narrow(1, 0, columns).to(at::kLong)}) *
                            scales.repeat_interleave(64, 1).narrow(1, 0, columns);
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
      const Tensor y = nf4_dequantise(matrix, columns, dtype);
      ASSERT_EQ(y.scalar_type(), dtype);
      const double unit = dtype == at::kBFloat16 ? 0x1p-8 : dtype == at::kHalf ? 0x1p-11 : 0x1p-22;
      // The scale itself is rounded to fp32, twice: products and sums of numbers up to the mean.
      const Tensor bound = expected.abs() * unit + 2e-6;
      EXPECT_TRUE((y.cpu().to(at::kDouble) - expected).abs().le(bound).all().item<bool>())
          << columns << " columns in " << c10::toString(dtype);
      EXPECT_TRUE(at::equal(y, nf4_dequantise(matrix, columns, dtype, Kernels::kReference)))
          << columns << " columns in " << c10::toString(dtype);
      EXPECT_EQ(y[3].abs().max().item<double>(), 0) << "zeros stay zeros";
    }
  }
}

TEST(Nf4Scales, LevelsAreTenthsSpreadEvenly) {
  const Tensor levels = nf4_scale_levels().to(at::kDouble);
  std::vector<double> expected = {0, 1};
  for (int range = 0; range < 7; ++range) {
    const int count = 1 << range;
    for (int i = 0; i < count; ++i) {
      const double level = std::pow(10, range - 6) * (0.1 + 0.9 * (i + 0.5) / count);
      expected.push_back(level);
      expected.push_back(-level);
    }
  }
  std::sort(expected.begin(), expected.end());
  ASSERT_EQ(levels.size(0), 256);
  for (int64_t i = 0; i < 256; ++i) {
    const double level = expected[static_cast<size_t>(i)];
    EXPECT_NEAR(levels[i].item<double>(), level, 2e-7 * std::abs(level)) << i;
  }
}

TEST_P(Nf4, ScalesAreHeldToTheNearestLevelOfTheirGroup) {
  for (const int64_t count : {1, 255, 256, 257, 1000}) {
    const Tensor scales = testing::rand({count}) + 0.5;
    const Nf4Scales found = nf4_quantise_scales(scales);
    const Tensor levels = nf4_scale_levels().to(at::kDouble), exact = scales.cpu().to(at::kDouble);
    const double mean = exact.mean().item<double>();
    ASSERT_EQ(found.groups.sizes(), (at::IntArrayRef{(count + 255) / 256, 2}));
    for (int64_t i = 0; i < count; ++i) {
      const int64_t first = i / 256 * 256;
      const double factor =
          (exact.narrow(0, first, std::min<int64_t>(256, count - first)) - mean).abs().max().item<double>();
      EXPECT_NEAR(found.groups[i / 256][0].item<double>(), factor, 1e-6);
      EXPECT_NEAR(found.groups[i / 256][1].item<double>(), mean, 1e-6);
      const double wanted = factor == 0 ? 0 : (exact[i].item<double>() - mean) / factor;
      const double nearest = (levels - wanted).abs().min().item<double>();
      EXPECT_LE(std::abs(levels[found.codes[i].item<int64_t>()].item<double>() - wanted), nearest + 1e-5) << i;
    }
  }
}

TEST(Nf4Scales, OfNothingThereAreNone) {
  const Nf4Scales none = nf4_quantise_scales(at::empty({0}));
  EXPECT_EQ(none.codes.numel() + none.groups.numel(), 0);
}

TEST(Nf4Arguments, WrongOnesAreNamed) {
  const auto message = [](const auto& call) -> std::string {
    try {
      call();
    } catch (const UserError& error) {
      return error.message();
    }
    return "";
  };
  EXPECT_NE(message([] { nf4_quantise(at::zeros({2, 64}, at::kInt)); }).find("nf4_quantise: x"), std::string::npos);
  Nf4Matrix matrix = packed(nf4_quantise(at::randn({2, 64})));
  EXPECT_NE(message([&] { nf4_dequantise(matrix, 66, at::kFloat); }).find("codes"), std::string::npos);
  EXPECT_NE(message([&] { nf4_dequantise(matrix, 64, at::kInt); }).find("dtype is Int"), std::string::npos);
  matrix.levels = matrix.levels.narrow(0, 0, 16);
  EXPECT_NE(message([&] { nf4_dequantise(matrix, 64, at::kFloat); }).find("levels"), std::string::npos);
}

MEGALITH_ON_EVERY_DEVICE(Nf4);

}  // namespace
}  // namespace megalith::ops::nf4_test
