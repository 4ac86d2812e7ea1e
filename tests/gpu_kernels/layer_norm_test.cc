// layer_norm's GPU kernels under emulation: against loops in double, equal to the bit in every order.
#include <cmath>

#include "gpu_kernels/expect.h"
#include "gpu_kernels/rounded.h"
#include "ops/layer_norm/kernel.h"

namespace megalith::ops {
namespace {

using testing::Array;
using testing::Expected;
using testing::rounded;

struct LayerNormCase {
  Dtype dtype;
  int64_t rows, columns;
  bool has_residual;
  double weight_offset = 0;
  double mean = 0.5;       // of x
  int64_t shift = 0;       // of all arrays of `dtype`, in elements
  int64_t num_blocks = 0;  // of rows, on the way back; 0: as many as the product takes
  double eps = 1e-5;

  std::string what() const {
    return "(" + std::to_string(rows) + ", " + std::to_string(columns) + ") " + testing::name_of(dtype) +
           (has_residual ? " with residual" : "") + (shift != 0 ? " not aligned" : "");
  }
};

struct LayerNormInputs {
  Array x, residual, weight, bias, dy, dsum;

  explicit LayerNormInputs(const LayerNormCase& c)
      : x(c.dtype, c.rows * c.columns, c.shift),
        residual(c.dtype, c.rows * c.columns, c.shift),
        weight(c.dtype, c.columns, c.shift),
        bias(c.dtype, c.columns, c.shift),
        dy(c.dtype, c.rows * c.columns, c.shift),
        dsum(c.dtype, c.rows * c.columns, c.shift) {
    std::mt19937 generator(static_cast<unsigned>(c.rows * 1000 + c.columns));
    x.draw(generator, c.mean, 3);
    residual.draw(generator, 0, 3);
    weight.draw(generator, 1 - c.weight_offset, 0.25);
    bias.draw(generator, 0, 0.5);
    dy.draw(generator, 0, 1);
    dsum.draw(generator, 0, 1);
  }
};

// {sum or nothing, mean, inv_std, y, dx, dweight, dbias}
std::vector<Array> run(const LayerNormCase& c, LayerNormInputs& in) {
  const int64_t size = c.rows * c.columns, blocks = c.num_blocks > 0 ? c.num_blocks : layer_norm_gpu_blocks(c.rows);
  const Dtype wide = testing::wide_of(c.dtype);
  Array sum(c.dtype, c.has_residual ? size : 0, c.shift), y(c.dtype, size, c.shift);
  Array mean(wide, c.rows), inv_std(wide, c.rows);
  gpu::layer_norm_forward({.dtype = c.dtype,
                           .rows = c.rows,
                           .columns = c.columns,
                           .x = in.x.data(),
                           .residual = c.has_residual ? in.residual.data() : nullptr,
                           .weight = in.weight.data(),
                           .weight_offset = c.weight_offset,
                           .bias = in.bias.data(),
                           .eps = c.eps,
                           .y = y.data(),
                           .sum = c.has_residual ? sum.data() : nullptr,
                           .mean = mean.data(),
                           .inv_std = inv_std.data()},
                          nullptr);
  Array dx(c.dtype, size, c.shift), dweight(wide, c.columns), dbias(wide, c.columns);
  Array scratch(wide, blocks * 2 * c.columns);
  gpu::layer_norm_backward({.dtype = c.dtype,
                            .rows = c.rows,
                            .columns = c.columns,
                            .dy = in.dy.data(),
                            .dsum = c.has_residual ? in.dsum.data() : nullptr,
                            .x = c.has_residual ? sum.data() : in.x.data(),
                            .weight = in.weight.data(),
                            .weight_offset = c.weight_offset,
                            .mean = mean.data(),
                            .inv_std = inv_std.data(),
                            .dx = dx.data(),
                            .dweight = dweight.data(),
                            .dbias = dbias.data(),
                            .scratch = scratch.data(),
                            .blocks = blocks},
                           nullptr);
  std::vector<Array> results;
  for (Array* array : {&sum, &mean, &inv_std, &y, &dx, &dweight, &dbias}) results.push_back(std::move(*array));
  return results;
}

void check(const LayerNormCase& c, const LayerNormInputs& in, const std::vector<Array>& results) {
  const Array& sum = results[0];
  // Sums of up to 16,392 terms in float, some of them by one thread after the other.
  const double wide = c.dtype == Dtype::kFloat64 ? 1e-13 : 1e-5;
  const double unit = testing::unit_of(c.dtype), step = testing::smallest_step_of(c.dtype);
  const auto count = static_cast<double>(c.columns);
  const auto in_wide = [&](double value) { return rounded(testing::wide_of(c.dtype), value); };
  std::vector<Expected> sums, means, inv_stds, y, dx;
  std::vector<Expected> dweight(static_cast<size_t>(c.columns)), dbias(static_cast<size_t>(c.columns));
  for (int64_t row = 0; row < c.rows; ++row) {
    const int64_t start = row * c.columns;
    // The norm is that of the rounded sum.
    const auto normed = [&](int64_t i) { return c.has_residual ? sum[start + i] : in.x[start + i]; };
    const auto weight = [&](int64_t i) { return in.weight[i] + c.weight_offset; };
    double total = 0, squares = 0, largest = 0;
    for (int64_t i = 0; i < c.columns; ++i) {
      total += normed(i);
      largest = std::max(largest, std::abs(normed(i)));
      // In float, then in the dtype.
      if (c.has_residual) sums.push_back({rounded(c.dtype, in_wide(in.x[start + i] + in.residual[start + i])), 0});
    }
    const double mean = total / count;
    for (int64_t i = 0; i < c.columns; ++i) squares += (normed(i) - mean) * (normed(i) - mean);
    const double scale = 1 / std::sqrt(squares / count + c.eps);
    // x - mean is as exact as x and the mean are; it is multiplied by the scale.
    const double of_center = (c.dtype == Dtype::kFloat64 ? 0x1p-51 : 0x1p-22) * largest;
    const double of_n = of_center * scale;
    means.push_back({mean, of_center + wide * std::abs(mean)});
    inv_stds.push_back({scale, (wide + of_n * of_n + (c.columns == 1 ? of_n : 0)) * scale});
    double total_g = 0, total_gn = 0, sizes = 0;
    for (int64_t i = 0; i < c.columns; ++i) {
      const double n = (normed(i) - mean) * scale;
      const double grad = in.dy[start + i], g = grad * weight(i);
      // From the statistics that the kernel found, in its steps: rounded to the dtype once.
      const double by = in_wide(in_wide(normed(i) - results[1][row]) * results[2][row]);
      const double scaled = in_wide(by * in_wide(in.weight[i] + c.weight_offset));
      y.push_back({rounded(c.dtype, in_wide(scaled + in.bias[i])), 0});
      total_g += g;
      total_gn += g * n;
      sizes = std::max(sizes, std::abs(g) * (1 + std::abs(n)));
      auto& [to_weight, weight_bound] = dweight[static_cast<size_t>(i)];
      to_weight += grad * n;
      weight_bound += wide * std::abs(grad * n) + of_n * std::abs(grad);
      auto& [to_bias, bias_bound] = dbias[static_cast<size_t>(i)];
      to_bias += grad;
      bias_bound += wide * std::abs(grad);
    }
    for (int64_t i = 0; i < c.columns; ++i) {
      const double n = (normed(i) - mean) * scale, g = in.dy[start + i] * weight(i);
      double value = (g - total_g / count - n * total_gn / count) * scale;
      if (c.has_residual) value += in.dsum[start + i];
      // Differences lose digits of what they are differences of.
      const double scales = scale * sizes * (1 + std::abs(n)) + (c.has_residual ? std::abs(in.dsum[start + i]) : 0);
      dx.push_back({value, unit * std::abs(value) + (wide + 4 * of_n) * scales + step});
    }
  }
  if (c.has_residual) testing::expect_near(sum, sums, "sum");
  testing::expect_near(results[1], means, "mean");
  testing::expect_near(results[2], inv_stds, "inv_std");
  testing::expect_near(results[3], y, "y");
  testing::expect_near(results[4], dx, "dx");
  testing::expect_near(results[5], dweight, "dweight");
  testing::expect_near(results[6], dbias, "dbias");
}

void try_layer_norm(const LayerNormCase& c) {
  LayerNormInputs in(c);
  testing::in_every_order(
      c.what(), [&] { return run(c, in); }, [&](const std::vector<Array>& results) { check(c, in, results); });
}

TEST(LayerNormKernels, EqualLoopsInDoubleInEveryOrder) {
  // As for rms_norm; the way back keeps up to 16 elements a thread, in up to 512 threads.
  using Shapes = std::vector<std::pair<int64_t, int64_t>>;
  const Shapes shapes = testing::is_thorough() ? Shapes{{1, 1},   {3, 7},    {5, 131},  {9, 16},   {70, 128}, {5, 256},
                                                        {5, 264}, {3, 2048}, {2, 2056}, {2, 8200}, {2, 16392}}
                                               : Shapes{{3, 7}, {9, 16}, {5, 264}, {2, 2056}};
  for (const auto& [rows, columns] : shapes) {
    for (const Dtype dtype : testing::dtypes(columns)) {
      for (const bool has_residual : {false, true}) {
        try_layer_norm({.dtype = dtype,
                        .rows = rows,
                        .columns = columns,
                        .has_residual = has_residual,
                        .weight_offset = has_residual ? 1.0 : 0.0});
        if (HasFatalFailure()) return;
      }
    }
  }
}

// With many rows the product has more of them in a block than it has teams.
TEST(LayerNormKernels, TeamsTakeSeveralRowsOneAfterTheOther) {
  constexpr std::pair<int64_t, int64_t> kShapes[] = {{35, 128}, {20, 256}, {7, 264}};
  for (const auto& [rows, columns] : kShapes) {
    for (const Dtype dtype : testing::dtypes()) {
      try_layer_norm({.dtype = dtype, .rows = rows, .columns = columns, .has_residual = true, .num_blocks = 2});
      if (HasFatalFailure()) return;
    }
  }
}

TEST(LayerNormKernels, TakeArraysThatAreNotAligned) {
  for (const Dtype dtype : testing::dtypes()) {
    for (const int64_t columns : {8, 512}) {
      try_layer_norm({.dtype = dtype, .rows = 3, .columns = columns, .has_residual = true, .shift = 1});
      if (HasFatalFailure()) return;
    }
  }
}

// The squares of x would lose all digits of its deviations.
TEST(LayerNormKernels, ALargeMeanCostsNoDigitsOfTheDeviations) {
  for (const int64_t columns : {16, 264, 7}) {
    try_layer_norm({.dtype = Dtype::kFloat32, .rows = 3, .columns = columns, .has_residual = false, .mean = 3000});
    if (HasFatalFailure()) return;
  }
}

TEST(LayerNormKernels, NoRowsGiveGradientsOfZero) {
  const LayerNormCase c{.dtype = Dtype::kFloat32, .rows = 0, .columns = 40, .has_residual = false};
  LayerNormInputs in(c);
  const std::vector<Array> results = run(c, in);
  testing::expect_near(results[5], std::vector<Expected>(40), "dweight");
  testing::expect_near(results[6], std::vector<Expected>(40), "dbias");
}

}  // namespace
}  // namespace megalith::ops
