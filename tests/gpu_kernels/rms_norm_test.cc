// rms_norm's GPU kernels under emulation: against loops in double, equal to the bit in every order.
#include <cmath>

#include "gpu_kernels/expect.h"
#include "gpu_kernels/rounded.h"
#include "ops/rms_norm/kernel.h"

namespace megalith::ops {
namespace {

using testing::Array;
using testing::Expected;
using testing::rounded;

constexpr double kEps = 1e-5;

struct RmsNormCase {
  Dtype dtype;
  int64_t rows, columns;
  bool has_residual;
  int64_t shift = 0;       // of all arrays of `dtype`, in elements
  int64_t num_blocks = 0;  // of rows, on the way back; 0: as many as the product takes

  std::string what() const {
    return "(" + std::to_string(rows) + ", " + std::to_string(columns) + ") " + testing::name_of(dtype) +
           (has_residual ? " with residual" : "") + (shift != 0 ? " not aligned" : "");
  }
};

struct RmsNormInputs {
  Array x, residual, weight, dy, dsum;

  explicit RmsNormInputs(const RmsNormCase& c)
      : x(c.dtype, c.rows * c.columns, c.shift),
        residual(c.dtype, c.rows * c.columns, c.shift),
        weight(c.dtype, c.columns, c.shift),
        dy(c.dtype, c.rows * c.columns, c.shift),
        dsum(c.dtype, c.rows * c.columns, c.shift) {
    std::mt19937 generator(static_cast<unsigned>(c.rows * 1000 + c.columns));
    x.draw(generator, 0, 3);
    residual.draw(generator, 0, 3);
    weight.draw(generator, 1, 0.25);
    dy.draw(generator, 0, 1);
    dsum.draw(generator, 0, 1);
  }
};

// {sum or nothing, inv_rms, y, dx, dweight}
std::vector<Array> run(const RmsNormCase& c, RmsNormInputs& in) {
  const int64_t size = c.rows * c.columns, blocks = c.num_blocks > 0 ? c.num_blocks : rms_norm_gpu_blocks(c.rows);
  const Dtype wide = testing::wide_of(c.dtype);
  Array sum(c.dtype, c.has_residual ? size : 0, c.shift), inv_rms(wide, c.rows), y(c.dtype, size, c.shift);
  gpu::rms_norm_forward({.dtype = c.dtype,
                         .rows = c.rows,
                         .columns = c.columns,
                         .x = in.x.data(),
                         .residual = c.has_residual ? in.residual.data() : nullptr,
                         .weight = in.weight.data(),
                         .eps = kEps,
                         .y = y.data(),
                         .sum = c.has_residual ? sum.data() : nullptr,
                         .inv_rms = inv_rms.data()},
                        nullptr);
  Array dx(c.dtype, size, c.shift), dweight(wide, c.columns), scratch(wide, blocks * c.columns);
  gpu::rms_norm_backward({.dtype = c.dtype,
                          .rows = c.rows,
                          .columns = c.columns,
                          .dy = in.dy.data(),
                          .dsum = c.has_residual ? in.dsum.data() : nullptr,
                          .x = c.has_residual ? sum.data() : in.x.data(),
                          .weight = in.weight.data(),
                          .inv_rms = inv_rms.data(),
                          .dx = dx.data(),
                          .dweight = dweight.data(),
                          .scratch = scratch.data(),
                          .blocks = blocks},
                         nullptr);
  std::vector<Array> results;
  for (Array* array : {&sum, &inv_rms, &y, &dx, &dweight}) results.push_back(std::move(*array));
  return results;
}

void check(const RmsNormCase& c, const RmsNormInputs& in, const std::vector<Array>& results) {
  const Array& sum = results[0];
  // Sums of up to 16,392 terms in float, some of them by one thread after the other.
  const double wide = c.dtype == Dtype::kFloat64 ? 1e-13 : 1e-5;
  const double unit = testing::unit_of(c.dtype), step = testing::smallest_step_of(c.dtype);
  const Dtype wide_dtype = testing::wide_of(c.dtype);
  std::vector<Expected> sums, inv_rms, y, dx, dweight(static_cast<size_t>(c.columns));
  for (int64_t row = 0; row < c.rows; ++row) {
    const int64_t start = row * c.columns;
    // The norm is that of the rounded sum.
    const auto normed = [&](int64_t i) { return c.has_residual ? sum[start + i] : in.x[start + i]; };
    double squares = 0;
    for (int64_t i = 0; i < c.columns; ++i) {
      squares += normed(i) * normed(i);
      // In float, then in the dtype.
      if (c.has_residual) {
        sums.push_back({rounded(c.dtype, rounded(wide_dtype, in.x[start + i] + in.residual[start + i])), 0});
      }
    }
    const double scale = 1 / std::sqrt(squares / static_cast<double>(c.columns) + kEps);
    inv_rms.push_back({scale, wide * scale});
    double dot = 0, largest = 0;
    for (int64_t i = 0; i < c.columns; ++i) {
      const double n = normed(i) * scale, grad = in.dy[start + i] * in.weight[i];
      // By the scale that the kernel found: n and the product are rounded, and the gradient sees the rounded n.
      const double seen = rounded(c.dtype, rounded(wide_dtype, normed(i) * results[1][row]));
      y.push_back({rounded(c.dtype, rounded(wide_dtype, seen * in.weight[i])), 0});
      dot += grad * n;
      largest = std::max(largest, std::abs(grad * scale));
      auto& [value, bound] = dweight[static_cast<size_t>(i)];
      value += in.dy[start + i] * seen;
      bound += wide * std::abs(in.dy[start + i] * seen);
    }
    const double mean = dot / static_cast<double>(c.columns);
    for (int64_t i = 0; i < c.columns; ++i) {
      const double n = normed(i) * scale;
      double value = (in.dy[start + i] * in.weight[i] - n * mean) * scale;
      if (c.has_residual) value += in.dsum[start + i];
      // Differences lose digits of what they are differences of.
      const double scales = largest + std::abs(n * mean * scale) + (c.has_residual ? std::abs(in.dsum[start + i]) : 0);
      dx.push_back({value, unit * std::abs(value) + wide * scales + step});
    }
  }
  if (c.has_residual) testing::expect_near(sum, sums, "sum");
  testing::expect_near(results[1], inv_rms, "inv_rms");
  testing::expect_near(results[2], y, "y");
  testing::expect_near(results[3], dx, "dx");
  testing::expect_near(results[4], dweight, "dweight");
}

void try_rms_norm(const RmsNormCase& c) {
  RmsNormInputs in(c);
  testing::in_every_order(
      c.what(), [&] { return run(c, in); }, [&](const std::vector<Array>& results) { check(c, in, results); });
}

TEST(RmsNormKernels, EqualLoopsInDoubleInEveryOrder) {
  // One element; less than a vector; odd; a few lanes a row, with a last block that is not full; one vector more than
  // lanes take; one, two and four vectors a thread; more than registers take. Enough rows for several blocks of rows.
  using Shapes = std::vector<std::pair<int64_t, int64_t>>;
  const Shapes shapes = testing::is_thorough() ? Shapes{{1, 1},   {3, 7},    {5, 131},  {9, 16},   {70, 128}, {5, 256},
                                                        {5, 264}, {3, 2048}, {2, 2056}, {3, 4104}, {2, 16392}}
                                               : Shapes{{3, 7}, {9, 16}, {5, 264}, {2, 2056}};
  for (const auto& [rows, columns] : shapes) {
    for (const Dtype dtype : testing::dtypes(columns)) {
      for (const bool has_residual : {false, true}) {
        try_rms_norm({.dtype = dtype, .rows = rows, .columns = columns, .has_residual = has_residual});
        if (HasFatalFailure()) return;
      }
    }
  }
}

// With many rows the product has more of them in a block than it has teams.
TEST(RmsNormKernels, TeamsTakeSeveralRowsOneAfterTheOther) {
  constexpr std::pair<int64_t, int64_t> kShapes[] = {{35, 128}, {20, 256}, {7, 264}};
  for (const auto& [rows, columns] : kShapes) {
    for (const Dtype dtype : testing::dtypes()) {
      try_rms_norm({.dtype = dtype, .rows = rows, .columns = columns, .has_residual = true, .num_blocks = 2});
      if (HasFatalFailure()) return;
    }
  }
}

TEST(RmsNormKernels, TakeArraysThatAreNotAligned) {
  for (const Dtype dtype : testing::dtypes()) {
    for (const int64_t columns : {8, 512}) {
      try_rms_norm({.dtype = dtype, .rows = 3, .columns = columns, .has_residual = true, .shift = 1});
      if (HasFatalFailure()) return;
    }
  }
}

TEST(RmsNormKernels, NoRowsGiveAGradientOfZero) {
  const RmsNormCase c{.dtype = Dtype::kFloat32, .rows = 0, .columns = 40, .has_residual = false};
  RmsNormInputs in(c);
  const std::vector<Array> results = run(c, in);
  testing::expect_near(results[4], std::vector<Expected>(40), "dweight");
}

}  // namespace
}  // namespace megalith::ops
