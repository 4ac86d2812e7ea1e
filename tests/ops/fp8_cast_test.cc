// fp8_cast: every form equal to the bit to LibTorch's casts, for all numbers of 16 bits and where rounding decides.
#include "ops/fp8_cast/fp8_cast.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "core/error.h"
#include "support/dtypes.h"
#include "support/on_device.h"
#include "support/tensor_near.h"

namespace megalith::ops::fp8_cast_test {
namespace {

using at::Tensor;
using CastToFp8 = testing::OnDevice;

constexpr at::ScalarType kFp8Dtypes[] = {at::kFloat8_e4m3fn, at::kFloat8_e5m2, at::kFloat8_e4m3fnuz,
                                         at::kFloat8_e5m2fnuz};

Tensor bytes_of(const Tensor& fp8) { return fp8.view(at::kByte).cpu(); }

// LibTorch's cast of x times the scale, clamped, on the CPU.
Tensor cast_by_libtorch(const Tensor& x, double scale, at::ScalarType dtype) {
  const Tensor wide = x.cpu().to(x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  const double largest = largest_of_fp8(dtype);
  return (wide * scale).clamp(-largest, largest).to(dtype).view(at::kByte);
}

// Fails at the first difference, naming the number and both codes.
void expect_same_bytes(const Tensor& x, const Tensor& found, const Tensor& expected, const std::string& what) {
  ASSERT_EQ(found.sizes(), expected.sizes()) << what;
  if (found.equal(expected)) return;
  const int64_t i = found.flatten().ne(expected.flatten()).nonzero()[0].item<int64_t>();
  FAIL() << what << "[" << i << "]: " << x.flatten()[i].item<double>() << " becomes "
         << found.flatten()[i].item<int64_t>() << " instead of " << expected.flatten()[i].item<int64_t>();
}

void check_against_libtorch(const Tensor& x, double scale, const std::string& what) {
  const Tensor factor = testing::full({}, scale, x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  for (const at::ScalarType dtype : kFp8Dtypes) {
    const auto where = fmt::format("{} {} times {}", what, c10::toString(dtype), scale);
    const Tensor expected = cast_by_libtorch(x, scale, dtype);
    for (const Kernels kernels : {Kernels::kFused, Kernels::kReference}) {
      const Fp8Cast cast = fp8_cast(x, factor, dtype, true, {}, kernels);
      ASSERT_EQ(cast.values.scalar_type(), dtype);
      expect_same_bytes(x, bytes_of(cast.values), expected, where);
      expect_same_bytes(x.t(), bytes_of(cast.transposed), expected.t(), where + " transposed");
      expect_same_bytes(x, bytes_of(fp8_cast(x, factor, dtype, false, {}, kernels).values), expected, where);
    }
  }
}

Tensor every_number_of_16_bits(at::ScalarType dtype) {
  return testing::here(at::arange(65536, at::kInt).to(at::kShort).view(dtype).view({256, 256}));
}

TEST_P(CastToFp8, EveryNumberOf16BitsIsCastAsByLibTorch) {
  // 1; a number whose products are not exact; what brings the smallest numbers into the range, and the largest.
  for (const double scale : {1.0, 0.37, 0x1p100, 0x1p-100}) {
    check_against_libtorch(every_number_of_16_bits(at::kBFloat16), scale, "bfloat16");
    check_against_libtorch(every_number_of_16_bits(at::kHalf), scale, "float16");
  }
}

// Every number of a format, the middles between neighbours, and the fp32 numbers beside both; denormals, infinities,
// NaNs, and numbers beyond the range.
std::vector<float> deciding_numbers(at::ScalarType dtype) {
  const Tensor codes = at::arange(256, at::kInt).to(at::kByte).view(dtype).to(at::kFloat);
  std::vector<float> exact;
  for (int64_t i = 0; i < 256; ++i) {
    const float value = codes[i].item<float>();
    if (std::isfinite(value)) exact.push_back(value);
  }
  std::sort(exact.begin(), exact.end());
  std::vector<float> numbers;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto add = [&](float value) {
    for (const float x : {value, std::nextafter(value, kInfinity), std::nextafter(value, -kInfinity)})
      numbers.push_back(x);
  };
  for (size_t i = 0; i < exact.size(); ++i) {
    add(exact[i]);
    if (i + 1 < exact.size()) add((exact[i] + exact[i + 1]) / 2);
  }
  for (const float x : {0.0f, 0x1p-149f, 0x1p-126f, 464.0f, 465.0f, 61440.0f, 61441.0f, 3e38f, kInfinity}) {
    add(x);
    add(-x);
  }
  numbers.push_back(std::numeric_limits<float>::quiet_NaN());
  numbers.push_back(-std::numeric_limits<float>::quiet_NaN());
  return numbers;
}

TEST_P(CastToFp8, TiesAndEdgesOfFp32AreCastAsByLibTorch) {
  for (const at::ScalarType of : kFp8Dtypes) {
    const Tensor x = testing::tensor(deciding_numbers(of), at::kFloat).unsqueeze(0);
    check_against_libtorch(x, 1, "float32");
    check_against_libtorch(x.to(at::kDouble), 1, "float64");
  }
}

TEST_P(CastToFp8, NumbersOfAnySizeAreCastAsByLibTorch) {
  // Any bits of fp32, of awkward shapes: one number, primes, a tail after tiles of 64 and of 128.
  std::mt19937 generator(7);
  constexpr std::pair<int64_t, int64_t> kShapes[] = {{1, 1}, {7, 3}, {67, 131}, {130, 264}, {8, 128}, {200, 72}};
  for (const auto& [rows, columns] : kShapes) {
    std::vector<int64_t> bits(static_cast<size_t>(rows * columns));
    for (int64_t& one : bits) one = static_cast<int32_t>(generator());
    const Tensor any = at::tensor(bits, at::kLong).to(at::kInt).view(at::kFloat).view({rows, columns});
    check_against_libtorch(testing::here(any), 1, "any bits");
    for (const at::ScalarType dtype : testing::kFloatingDtypes) {
      check_against_libtorch(testing::randn({rows, columns}).to(dtype), 96.5, c10::toString(dtype));
    }
  }
}

TEST_P(CastToFp8, RowsMayBeApart) {
  at::manual_seed(2);
  const Tensor wide = testing::randn({66, 150}).to(at::kBFloat16), x = wide.narrow(1, 3, 136);
  check_against_libtorch(x, 3, "strided");
  check_against_libtorch(wide.narrow(1, 0, 136), 3, "strided");
}

TEST_P(CastToFp8, TheLargestAbsoluteValueIsRaised) {
  at::manual_seed(3);
  for (const at::ScalarType dtype : testing::kFloatingDtypes) {
    const auto wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
    const Tensor x = testing::randn({131, 72}).to(dtype), scale = testing::full({}, 2, wide);
    const double largest = x.abs().amax().item<double>();
    for (const Kernels kernels : {Kernels::kFused, Kernels::kReference}) {
      for (const bool with_transposed : {false, true}) {
        const Tensor amax = testing::zeros({}, wide);
        fp8_cast(x, scale, at::kFloat8_e5m2, with_transposed, amax, kernels);
        EXPECT_EQ(amax.item<double>(), largest);
        fp8_cast(x * 0.5, scale, at::kFloat8_e5m2, with_transposed, amax, kernels);
        EXPECT_EQ(amax.item<double>(), largest) << "less does not lower it";
        fp8_cast(x * -2, scale, at::kFloat8_e5m2, with_transposed, amax, kernels);
        EXPECT_EQ(amax.item<double>(), 2 * largest);
        Tensor with_infinity = x.clone();
        with_infinity.select(0, 130).select(0, 71).fill_(-std::numeric_limits<double>::infinity());
        fp8_cast(with_infinity, scale, at::kFloat8_e5m2, with_transposed, amax, kernels);
        EXPECT_TRUE(std::isinf(amax.item<double>()) && amax.item<double>() > 0);
        with_infinity.select(0, 1).select(0, 1).fill_(std::nan(""));
        fp8_cast(with_infinity, scale, at::kFloat8_e5m2, with_transposed, amax, kernels);
        EXPECT_TRUE(std::isnan(amax.item<double>()));
        fp8_cast(x, scale, at::kFloat8_e5m2, with_transposed, amax, kernels);
        EXPECT_TRUE(std::isnan(amax.item<double>())) << "a NaN stays";
      }
    }
  }
}

// Scales of blocks, spread by loops.
TEST_P(CastToFp8, ScalesMayBelongToBlocks) {
  at::manual_seed(4);
  const int64_t rows = 200, columns = 264;
  const Tensor x = testing::randn({rows, columns}).to(at::kBFloat16);
  for (const int64_t block_rows : {int64_t{1}, int64_t{128}, rows}) {
    for (const int64_t block_columns : {int64_t{1}, int64_t{128}, columns}) {
      const int64_t r = (rows + block_rows - 1) / block_rows, c = (columns + block_columns - 1) / block_columns;
      const Tensor scale = testing::rand({r, c}) * 100 + 1;
      const Tensor row = at::arange(rows).div(block_rows, "floor"),
                   column = at::arange(columns).div(block_columns, "floor");
      const Tensor factor = scale.cpu().index_select(0, row).index_select(1, column);
      const Tensor expected = (x.cpu().to(at::kFloat) * factor).clamp(-448, 448).to(at::kFloat8_e4m3fn).view(at::kByte);
      for (const Kernels kernels : {Kernels::kFused, Kernels::kReference}) {
        const Fp8Cast cast = fp8_cast(x, scale, at::kFloat8_e4m3fn, true, {}, kernels);
        const auto what = fmt::format("blocks of {} by {}", block_rows, block_columns);
        expect_same_bytes(x, bytes_of(cast.values), expected, what);
        expect_same_bytes(x.t(), bytes_of(cast.transposed), expected.t(), what);
      }
    }
  }
}

TEST_P(CastToFp8, NothingIsCastToNothing) {
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{0, 5}, {5, 0}}) {
    const Tensor amax = testing::full({}, 3, at::kFloat);
    const Fp8Cast cast =
        fp8_cast(testing::ones({rows, columns}), testing::full({}, 1, at::kFloat), at::kFloat8_e4m3fn, true, amax);
    EXPECT_EQ(cast.values.sizes(), at::IntArrayRef({rows, columns}));
    EXPECT_EQ(cast.transposed.sizes(), at::IntArrayRef({columns, rows}));
    EXPECT_EQ(amax.item<double>(), 3);
  }
}

TEST(CastToFp8, WrongArgumentsAreNamed) {
  const Tensor x = at::ones({200, 8}), one = at::ones({});
  const auto refuses = [](const Tensor& value, const Tensor& scale, at::ScalarType dtype, const Tensor& amax,
                          const std::string& part) {
    try {
      fp8_cast(value, scale, dtype, false, amax);
      ADD_FAILURE() << "took what should say: " << part;
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  };
  refuses(x, one, at::kBFloat16, {}, "dtype is BFloat16");
  refuses(x, at::ones({3, 1}), at::kFloat8_e5m2, {}, "R of 1, 2 or 200");
  refuses(x, at::ones({200}), at::kFloat8_e5m2, {}, "scale has shape");
  refuses(x, one.to(at::kDouble), at::kFloat8_e5m2, {}, "scale is Double");
  refuses(x, one, at::kFloat8_e5m2, at::ones({1}), "amax has shape");
  refuses(x.t(), one, at::kFloat8_e5m2, {}, "rows of x");
  refuses(x.to(at::kLong), one, at::kFloat8_e5m2, {}, "x is Long");
}

MEGALITH_ON_EVERY_DEVICE(CastToFp8);

}  // namespace
}  // namespace megalith::ops::fp8_cast_test
