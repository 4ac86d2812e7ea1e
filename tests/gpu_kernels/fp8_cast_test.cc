// fp8_cast's GPU kernels under emulation: against the nearest of all numbers of a format, equal to the bit in every
// order.
#include <algorithm>
#include <cmath>
#include <limits>

#include "gpu_kernels/emulation/conversion.h"
#include "gpu_kernels/expect.h"
#include "ops/fp8_cast/kernel.h"

namespace megalith::ops {
namespace {

using testing::Array;

struct Fp8Case {
  Dtype dtype;
  EightBits format;
  int64_t rows, columns;
  bool with_transposed;
  int row_shift = kNoBlocks, column_shift = kNoBlocks;
  int64_t shift = 0;  // of x, in elements
  unsigned most_blocks = 4096;

  int64_t scale_rows() const { return ((rows - 1) >> row_shift) + 1; }
  int64_t scales_of_row() const { return ((columns - 1) >> column_shift) + 1; }
  int64_t scale_of(int64_t row, int64_t column) const {
    return (row >> row_shift) * scales_of_row() + (column >> column_shift);
  }
  std::string what() const {
    return "(" + std::to_string(rows) + ", " + std::to_string(columns) + ") " + testing::name_of(dtype) + " format " +
           std::to_string(static_cast<int>(format)) + (with_transposed ? " transposed" : "") +
           (shift != 0 ? " not aligned" : "");
  }
};

// Value of a code that is no NaN and no infinity.
double value_of(const EightBitsLayout& layout, uint8_t code) {
  const int exponent = (code & 0x7F) >> layout.mantissa_bits, mantissa = code & ((1 << layout.mantissa_bits) - 1);
  const int unit = 1 - layout.bias - layout.mantissa_bits;  // of the numbers that are not normal
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, unit)
                                         : std::ldexp(mantissa + (1 << layout.mantissa_bits), unit + exponent - 1);
  return code >= 0x80 ? -magnitude : magnitude;
}

// The codes of a format up to its largest number, in order.
std::vector<double> magnitudes_of(const EightBitsLayout& layout) {
  std::vector<double> all;
  for (int code = 0; code < 0x80; ++code) {
    const double value = value_of(layout, static_cast<uint8_t>(code));
    if (value <= layout.largest) all.push_back(value);
  }
  return all;
}

// The code nearest to x; of two, the even one.
uint8_t nearest(const EightBitsLayout& layout, const std::vector<double>& magnitudes, double x) {
  const uint8_t sign = std::signbit(x) ? 0x80 : 0;
  if (std::isnan(x)) return static_cast<uint8_t>(layout.is_fnuz ? layout.nan : layout.nan | sign);
  const double magnitude = std::min(std::abs(x), double{layout.largest});
  const auto above = std::lower_bound(magnitudes.begin(), magnitudes.end(), magnitude);
  int code = static_cast<int>(above - magnitudes.begin());
  if (code > 0) {
    const double up = *above - magnitude, down = magnitude - *(above - 1);
    if (down < up || (down == up && code % 2 == 1)) --code;
  }
  return static_cast<uint8_t>(code == 0 && layout.is_fnuz ? 0 : code | sign);
}

Array make_x(const Fp8Case& c) {
  Array x(c.dtype, c.rows * c.columns, c.shift);
  std::mt19937 generator(static_cast<unsigned>(c.rows * 1000 + c.columns));
  std::uniform_real_distribution<double> exponent(-24, 20);
  for (int64_t i = 0; i < x.count(); ++i) x.set(i, std::exp2(exponent(generator)) * (generator() % 2 == 0 ? 1 : -1));
  const double edges[] = {0,
                          -0.0,
                          std::numeric_limits<double>::quiet_NaN(),
                          -std::numeric_limits<double>::quiet_NaN(),
                          std::numeric_limits<double>::infinity(),
                          -1e30};
  // The largest of the others comes last, where a lost tail loses it.
  for (int64_t i = 0; i < 6 && i + 1 < x.count(); ++i) x.set(i, edges[i]);
  return x;
}

Array make_scales(const Fp8Case& c) {
  Array scales(testing::wide_of(c.dtype), c.scale_rows() * c.scales_of_row());
  for (int64_t i = 0; i < scales.count(); ++i) scales.set(i, static_cast<double>(1 + i % 13) * 0.375);
  return scales;
}

double product_of(const Fp8Case& c, const Array& x, const Array& scales, int64_t row, int64_t column) {
  const double value = x[row * c.columns + column], scale = scales[c.scale_of(row, column)];
  return c.dtype == Dtype::kFloat64 ? static_cast<float>(value * scale)
                                    : static_cast<float>(value) * static_cast<float>(scale);
}

// {values, transposed, amax}; codes as numbers.
std::vector<Array> run(const Fp8Case& c, Array& x, Array& scales, double amax_before) {
  std::vector<uint8_t> values(static_cast<size_t>(x.count())), transposed(c.with_transposed ? values.size() : 0);
  std::vector<Array> results;
  results.emplace_back(Dtype::kFloat32, x.count());
  results.emplace_back(Dtype::kFloat32, c.with_transposed ? x.count() : 0);
  results.emplace_back(testing::wide_of(c.dtype), 1);
  results[2].set(0, amax_before);
  gpu::fp8_cast({.dtype = c.dtype,
                 .format = c.format,
                 .rows = c.rows,
                 .columns = c.columns,
                 .x = x.data(),
                 .x_stride = c.columns,
                 .scales = scales.data(),
                 .row_shift = c.row_shift,
                 .column_shift = c.column_shift,
                 .scales_of_row = c.scales_of_row(),
                 .values = values.data(),
                 .transposed = c.with_transposed ? transposed.data() : nullptr,
                 .amax = results[2].data(),
                 .most_blocks = c.most_blocks},
                nullptr);
  for (size_t i = 0; i < values.size(); ++i) results[0].set(static_cast<int64_t>(i), values[i]);
  for (size_t i = 0; i < transposed.size(); ++i) results[1].set(static_cast<int64_t>(i), transposed[i]);
  return results;
}

using gpu_emulation::Conversion;

// Instructions of chips that cast to this format.
std::vector<Conversion> conversions_of(EightBits format) {
  if (layout_of(format).is_fnuz) return {Conversion::kNone, Conversion::kFnuz};
  return {Conversion::kNone, Conversion::kSaturating, Conversion::kOcp};
}

void try_fp8_cast(const Fp8Case& c, Conversion conversion) {
  gpu_emulation::set_conversion(conversion);
  Array x = make_x(c), scales = make_scales(c);
  const EightBitsLayout layout = layout_of(c.format);
  const std::vector<double> magnitudes = magnitudes_of(layout);
  testing::in_every_order(
      c.what() + " by conversion " + std::to_string(static_cast<int>(conversion)),
      [&] { return run(c, x, scales, 0); },
      [&](const std::vector<Array>& results) {
        std::vector<testing::Expected> values(static_cast<size_t>(x.count())), transposed(values.size());
        double largest = 0;
        for (int64_t row = 0; row < c.rows; ++row) {
          for (int64_t column = 0; column < c.columns; ++column) {
            const double code = nearest(layout, magnitudes, product_of(c, x, scales, row, column));
            values[static_cast<size_t>(row * c.columns + column)].value = code;
            transposed[static_cast<size_t>(column * c.rows + row)].value = code;
            const double value = std::abs(x[row * c.columns + column]);
            largest = std::isnan(value) || std::isnan(largest) ? std::nan("") : std::max(largest, value);
          }
        }
        testing::expect_near(results[0], values, "values");
        if (c.with_transposed) testing::expect_near(results[1], transposed, "transposed");
        if (std::isnan(largest)) {
          EXPECT_TRUE(std::isnan(results[2][0]));
        } else {
          ASSERT_EQ(results[2][0], largest) << "amax is " << results[2][0] << " instead of " << largest;
        }
      });
}

void try_fp8_cast(const Fp8Case& c) {
  for (const Conversion conversion : conversions_of(c.format)) {
    try_fp8_cast(c, conversion);
    if (::testing::Test::HasFatalFailure()) break;
  }
  gpu_emulation::set_conversion(Conversion::kNone);
}

constexpr EightBits kFormats[] = {EightBits::kE4m3fn, EightBits::kE5m2, EightBits::kE4m3fnuz, EightBits::kE5m2fnuz};

TEST(Fp8CastKernels, GiveTheNearestNumberInEveryOrder) {
  // One; odd; whole vectors and less than a tile; a tile and a tail of both kinds.
  using Shapes = std::vector<std::pair<int64_t, int64_t>>;
  const Shapes shapes =
      testing::is_thorough() ? Shapes{{1, 1}, {3, 7}, {16, 64}, {131, 144}, {144, 129}} : Shapes{{3, 7}, {16, 32}};
  for (const auto& [rows, columns] : shapes) {
    for (const Dtype dtype : testing::dtypes()) {
      for (const EightBits format : kFormats) {
        for (const bool with_transposed : {false, true}) {
          try_fp8_cast({dtype, format, rows, columns, with_transposed});
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// A chip's instruction and the integers give the same code, the nearest, for every bf16 number.
TEST(Fp8CastKernels, EveryBFloat16IsTheSameByEveryConversion) {
  if (!testing::is_thorough()) return;
  gpu_emulation::set_settings({});
  Array x(Dtype::kBFloat16, 65536);
  for (int64_t i = 0; i < x.count(); ++i) static_cast<uint16_t*>(x.data())[i] = static_cast<uint16_t>(i);
  for (const EightBits format : kFormats) {
    const EightBitsLayout layout = layout_of(format);
    const std::vector<double> magnitudes = magnitudes_of(layout);
    // 1; inexact products; the smallest numbers and the largest within the range.
    for (const double scale : {1.0, 0.37, 0x1p100, 0x1p-100}) {
      Fp8Case c{Dtype::kBFloat16, format, 256, 256, /*with_transposed=*/false};
      Array scales(Dtype::kFloat32, 1);
      scales.set(0, scale);
      std::vector<testing::Expected> expected(static_cast<size_t>(x.count()));
      for (int64_t i = 0; i < x.count(); ++i) {
        expected[static_cast<size_t>(i)].value =
            nearest(layout, magnitudes, product_of(c, x, scales, i / c.columns, i % c.columns));
      }
      for (const Conversion conversion : conversions_of(format)) {
        gpu_emulation::set_conversion(conversion);
        testing::expect_near(run(c, x, scales, 0)[0], expected,
                             "conversion " + std::to_string(static_cast<int>(conversion)));
        if (HasFatalFailure()) return;
      }
    }
  }
  gpu_emulation::set_conversion(Conversion::kNone);
}

TEST(Fp8CastKernels, TakeScalesOfBlocks) {
  for (const auto& [row_shift, column_shift] : {std::pair{0, 7}, {7, 7}, {7, 0}, {0, kNoBlocks}, {kNoBlocks, 0}}) {
    for (const bool with_transposed : {false, true}) {
      try_fp8_cast({.dtype = Dtype::kBFloat16,
                    .format = EightBits::kE4m3fn,
                    .rows = 130,
                    .columns = 144,
                    .with_transposed = with_transposed,
                    .row_shift = row_shift,
                    .column_shift = column_shift});
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Fp8CastKernels, TakeArraysThatAreNotAligned) {
  for (const Dtype dtype : testing::dtypes()) {
    for (const bool with_transposed : {false, true}) {
      try_fp8_cast({.dtype = dtype,
                    .format = EightBits::kE5m2,
                    .rows = 16,
                    .columns = 32,
                    .with_transposed = with_transposed,
                    .shift = 1});
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Fp8CastKernels, BlocksTakeSeveralPiecesOneAfterTheOther) {
  for (const bool with_transposed : {false, true}) {
    try_fp8_cast({.dtype = Dtype::kBFloat16,
                  .format = EightBits::kE4m3fn,
                  .rows = 300,
                  .columns = 144,
                  .with_transposed = with_transposed,
                  .most_blocks = 2});
    if (HasFatalFailure()) return;
  }
}

// Without NaNs: several blocks, of which the last has the largest; before it something larger or smaller.
TEST(Fp8CastKernels, RaiseTheLargestAbsoluteValue) {
  for (const Dtype dtype : testing::dtypes()) {
    for (const bool with_transposed : {false, true}) {
      const Fp8Case c{dtype, EightBits::kE4m3fn, 150, 40, with_transposed};
      Array x(dtype, c.rows * c.columns), scales = make_scales(c);
      for (int64_t i = 0; i < x.count(); ++i) x.set(i, i % 2 == 0 ? 1 : -2);
      x.set(x.count() - 1, -3);
      for (const double before : {0.0, 2.5, 7.0}) {
        testing::in_every_order(
            c.what(), [&] { return run(c, x, scales, before); },
            [&](const std::vector<Array>& results) {
              const double wanted = std::max(before, 3.0);
              ASSERT_EQ(results[2][0], wanted) << "amax is " << results[2][0] << " instead of " << wanted;
            });
        if (HasFatalFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace megalith::ops
