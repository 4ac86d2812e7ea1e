// Cross entropy's GPU kernels under emulation: against loops in double, equal to the bit in every order.
#include <algorithm>
#include <cmath>
#include <limits>

#include "gpu_kernels/expect.h"
#include "ops/linear_cross_entropy/kernel.h"

namespace megalith::ops {
namespace {

using testing::Array;
using testing::Expected;

constexpr double kLowest = -std::numeric_limits<double>::infinity();

struct CrossEntropyCase {
  Dtype dtype;
  int64_t rows, columns, valid;
  int64_t padding = 0;  // between rows, in elements
  int64_t vocab_start = 0;
  double mean = 0;
  int64_t shift = 0;  // of the logits, in elements

  int64_t stride() const { return columns + padding; }
  std::string what() const {
    return "(" + std::to_string(rows) + ", " + std::to_string(columns) + ") of which " + std::to_string(valid) + ", " +
           std::to_string(padding) + " apart, from " + std::to_string(vocab_start) + ", about " + std::to_string(mean) +
           " " + testing::name_of(dtype) + (shift != 0 ? " not aligned" : "");
  }
};

// Logits, labels on both sides of the slice and in it, and every third row without weight.
struct CrossEntropyInputs {
  Array logits, row_scale;
  std::vector<int64_t> labels;

  explicit CrossEntropyInputs(const CrossEntropyCase& c)
      : logits(c.dtype, c.rows * c.stride(), c.shift), row_scale(testing::wide_of(c.dtype), c.rows) {
    std::mt19937 generator(static_cast<unsigned>(c.rows * 1000 + c.columns));
    logits.draw(generator, c.mean, 3);
    for (int64_t row = 0; row < c.rows; ++row) {
      row_scale.set(row, row % 3 == 2 ? 0 : 0.25 + static_cast<double>(row));
      labels.push_back(row % 5 == 4 ? c.vocab_start - 1 - row
                                    : c.vocab_start + static_cast<int64_t>(generator() % (c.columns + 2)));
    }
  }
  int64_t target(const CrossEntropyCase& c, int64_t row) const {
    const int64_t column = labels[static_cast<size_t>(row)] - c.vocab_start;
    return column >= 0 && column < c.valid ? column : -1;
  }
};

LogitRows rows_of(const CrossEntropyCase& c, CrossEntropyInputs& in, Array& logits) {
  return {.dtype = c.dtype,
          .rows = c.rows,
          .columns = c.columns,
          .valid = c.valid,
          .stride = c.stride(),
          .logits = logits.data(),
          .labels = in.labels.data(),
          .vocab_start = c.vocab_start,
          .row_scale = in.row_scale.data()};
}
Array copy_of(const CrossEntropyCase& c, const Array& logits) {
  Array copy(c.dtype, logits.count(), c.shift);
  std::memcpy(copy.data(), logits.data(), logits.bytes());
  return copy;
}

struct RowSums {
  double highest = kLowest, sum = 0;
};
RowSums sums_of(const CrossEntropyCase& c, const CrossEntropyInputs& in, int64_t row) {
  RowSums sums;
  const auto logit = [&](int64_t i) { return in.logits[row * c.stride() + i]; };
  for (int64_t i = 0; i < c.valid; ++i) sums.highest = std::max(sums.highest, logit(i));
  for (int64_t i = 0; i < c.valid; ++i) sums.sum += std::exp(logit(i) - sums.highest);
  return sums;
}

// Exponentials of float have an error of 2^-22 for each unit of their argument, which is above -40.
double wide_bound(const CrossEntropyCase& c) { return c.dtype == Dtype::kFloat64 ? 1e-13 : 2e-5; }

// The gradient of rows with this log of the sum, and the elements between rows as they were.
std::vector<Expected> gradient_of(const CrossEntropyCase& c, const CrossEntropyInputs& in,
                                  const std::vector<double>& lse) {
  const double wide = wide_bound(c), unit = testing::unit_of(c.dtype), step = testing::smallest_step_of(c.dtype);
  std::vector<Expected> gradient;
  for (int64_t row = 0; row < c.rows; ++row) {
    const int64_t target = in.target(c, row);
    const double scale = in.row_scale[row];
    for (int64_t i = 0; i < c.columns; ++i) {
      const double difference = in.logits[row * c.stride() + i] - lse[static_cast<size_t>(row)];
      double value = scale == 0 || i >= c.valid ? 0 : scale * std::exp(difference);
      if (scale != 0 && i == target) value = scale * std::expm1(difference);
      // If the label has nearly all of the probability, the rest has the error of the log.
      const double rest = i == target ? scale * wide * std::abs(lse[static_cast<size_t>(row)]) : 0;
      gradient.push_back({value, (unit + wide) * std::abs(value) + rest + (value == 0 ? 0 : step)});
    }
    for (int64_t i = 0; i < c.padding; ++i) gradient.push_back({in.logits[row * c.stride() + c.columns + i], 0});
  }
  return gradient;
}

void try_statistics(const CrossEntropyCase& c, CrossEntropyInputs& in) {
  const Dtype wide = testing::wide_of(c.dtype);
  testing::in_every_order(
      c.what() + " statistics",
      [&] {
        std::vector<Array> results;
        for (int i = 0; i < 3; ++i) results.emplace_back(wide, c.rows);
        LogitRows rows = rows_of(c, in, in.logits);
        rows.row_max = results[0].data();
        rows.sum_exp = results[1].data();
        rows.target_logit = results[2].data();
        gpu::softmax_statistics(rows, nullptr);
        return results;
      },
      [&](const std::vector<Array>& results) {
        std::vector<Expected> sums, targets;
        for (int64_t row = 0; row < c.rows; ++row) {
          const auto [highest, sum] = sums_of(c, in, row);
          ASSERT_EQ(results[0][row], highest) << "row_max[" << row << "]";
          sums.push_back({sum, wide_bound(c) * sum});
          const int64_t target = in.target(c, row);
          targets.push_back({target < 0 ? 0 : in.logits[row * c.stride() + target], 0});
        }
        testing::expect_near(results[1], sums, "sum_exp");
        testing::expect_near(results[2], targets, "target_logit");
      });
}

// A rank's part of the gradient: the log of the sum came from all ranks, so it is above that of these columns.
void try_gradient(const CrossEntropyCase& c, CrossEntropyInputs& in) {
  Array lse(testing::wide_of(c.dtype), c.rows);
  std::vector<double> of_rows;
  for (int64_t row = 0; row < c.rows; ++row) {
    const auto [highest, sum] = sums_of(c, in, row);
    lse.set(row, c.valid == 0 ? 1 : highest + std::log(sum) + 0.5);
    of_rows.push_back(lse[row]);
  }
  testing::in_every_order(
      c.what() + " gradient",
      [&] {
        std::vector<Array> results;
        results.push_back(copy_of(c, in.logits));
        LogitRows rows = rows_of(c, in, results[0]);
        rows.lse = lse.data();
        gpu::cross_entropy_gradient(rows, nullptr);
        return results;
      },
      [&](const std::vector<Array>& results) {
        testing::expect_near(results[0], gradient_of(c, in, of_rows), "gradient");
      });
}

void try_whole(const CrossEntropyCase& c, CrossEntropyInputs& in, bool with_grad) {
  testing::in_every_order(
      c.what() + (with_grad ? " loss and gradient" : " loss"),
      [&] {
        std::vector<Array> results;
        results.emplace_back(testing::wide_of(c.dtype), c.rows);
        results.push_back(copy_of(c, in.logits));
        LogitRows rows = rows_of(c, in, results[1]);
        rows.losses = results[0].data();
        rows.with_grad = with_grad;
        gpu::cross_entropy(rows, nullptr);
        return results;
      },
      [&](const std::vector<Array>& results) {
        std::vector<Expected> losses;
        std::vector<double> of_rows;
        for (int64_t row = 0; row < c.rows; ++row) {
          const auto [highest, sum] = sums_of(c, in, row);
          const int64_t target = in.target(c, row);
          const double at_target = target < 0 ? 0 : in.logits[row * c.stride() + target];
          of_rows.push_back(highest + std::log(sum));
          const double bound = wide_bound(c) * (1 + std::abs(of_rows.back()));
          losses.push_back(in.row_scale[row] == 0 ? Expected{} : Expected{of_rows.back() - at_target, bound});
        }
        testing::expect_near(results[0], losses, "losses");
        if (with_grad) {
          testing::expect_near(results[1], gradient_of(c, in, of_rows), "gradient");
        } else {
          EXPECT_TRUE(results[1].has_bits_of(in.logits)) << "logits were written without a gradient";
        }
      });
}

void try_case(const CrossEntropyCase& c) {
  CrossEntropyInputs in(c);
  try_statistics(c, in);
  try_gradient(c, in);
  if (c.valid == 0) return;  // a whole vocabulary has a token
  try_whole(c, in, true);
  try_whole(c, in, false);
}

void try_cases(const std::vector<CrossEntropyCase>& cases) {
  for (CrossEntropyCase c : cases) {
    for (const Dtype dtype : testing::dtypes()) {
      c.dtype = dtype;
      try_case(c);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(CrossEntropyKernels, EqualLoopsInDoubleInEveryOrder) {
  // One column; less than a vector; odd, so that rows begin anywhere; a vector for each thread of the smallest block,
  // and one more; several vectors a thread; columns that do not count; none that does.
  std::vector<CrossEntropyCase> cases{{.rows = 7, .columns = 131, .valid = 131},
                                      {.rows = 3, .columns = 520, .valid = 500, .padding = 3, .vocab_start = 1000}};
  if (testing::is_thorough()) {
    cases.insert(cases.end(), {{.rows = 3, .columns = 1, .valid = 1},
                               {.rows = 5, .columns = 7, .valid = 6},
                               {.rows = 4, .columns = 1024, .valid = 1024},
                               {.rows = 4, .columns = 1032, .valid = 1025, .padding = 8},
                               {.rows = 2, .columns = 9001, .valid = 8999, .vocab_start = 9001},
                               {.rows = 3, .columns = 40, .valid = 0}});
  }
  try_cases(cases);
}

TEST(CrossEntropyKernels, TakeLogitsThatAreNotAligned) {
  try_cases({{.rows = 4, .columns = 136, .valid = 130, .vocab_start = 10, .shift = 3}});
}

// Exponentials of what is far from zero would be too large or too small, those of differences are not: also in threads
// that have no column.
TEST(CrossEntropyKernels, LogitsMayBeFarFromZero) {
  try_cases(
      {{.rows = 4, .columns = 40, .valid = 38, .mean = -500}, {.rows = 4, .columns = 40, .valid = 38, .mean = 500}});
}

TEST(CrossEntropyKernels, NoRowsAreNoLaunch) {
  const CrossEntropyCase c{.dtype = Dtype::kFloat32, .rows = 0, .columns = 40, .valid = 40};
  CrossEntropyInputs in(c);
  gpu::cross_entropy(rows_of(c, in, in.logits), nullptr);
}

TEST(CrossEntropyKernels, LogitsThatAreNotFiniteReachOnlyTheirRow) {
  const CrossEntropyCase c{.dtype = Dtype::kBFloat16, .rows = 6, .columns = 300, .valid = 300};
  CrossEntropyInputs in(c);
  const auto set_row = [&](int64_t row, double value) {
    for (int64_t i = 0; i < c.columns; ++i) in.logits.set(row * c.stride() + i, value);
  };
  in.logits.set(200, std::nan(""));
  set_row(1, kLowest);
  in.logits.set(2 * c.stride() + 7, std::nan(""));  // a row without weight
  in.logits.set(3 * c.stride() + 299, kLowest);
  for (int64_t row = 0; row < c.rows; ++row) in.labels[static_cast<size_t>(row)] = 5;
  testing::in_every_order(
      "not finite",
      [&] {
        std::vector<Array> results;
        for (int i = 0; i < 4; ++i) results.emplace_back(Dtype::kFloat32, c.rows);
        results.push_back(copy_of(c, in.logits));
        LogitRows rows = rows_of(c, in, results[4]);
        rows.row_max = results[0].data();
        rows.sum_exp = results[1].data();
        rows.target_logit = results[2].data();
        gpu::softmax_statistics(rows, nullptr);
        rows.losses = results[3].data();
        rows.with_grad = true;
        gpu::cross_entropy(rows, nullptr);
        return results;
      },
      [&](const std::vector<Array>& results) {
        const Array &highest = results[0], &sum = results[1], &losses = results[3], &gradient = results[4];
        EXPECT_TRUE(std::isnan(highest[0]) && std::isnan(sum[0]) && std::isnan(losses[0]) && std::isnan(gradient[0]));
        EXPECT_EQ(highest[1], kLowest);
        EXPECT_EQ(sum[1], 0);
        EXPECT_EQ(losses[2], 0);
        for (int64_t i = 0; i < c.columns; ++i) EXPECT_EQ(gradient[2 * c.stride() + i], 0);
        EXPECT_EQ(gradient[3 * c.stride() + 299], 0);  // exp(-inf)
        for (int64_t row = 3; row < c.rows; ++row) EXPECT_TRUE(std::isfinite(highest[row]) && std::isfinite(sum[row]));
        EXPECT_TRUE(std::isfinite(losses[3]) && std::isfinite(losses[4]));
      });
}

}  // namespace
}  // namespace megalith::ops
