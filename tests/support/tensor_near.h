// EXPECT_TENSOR_NEAR(actual, expected, {.abs = 1e-5, .what = "rms_norm"}): equal shapes and every element close. Names
// the first element that is not, with both values, and how many there are. Dtypes may differ: both are compared in
// double.
#pragma once

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

namespace megalith::testing {

// An element passes when |actual - expected| <= abs + rel * |expected| + rel_to_max * max|expected|. With everything 0
// the tensors must be equal. NaN equals NaN, and an infinity only itself.
struct Tolerance {
  double abs = 0;
  double rel = 0;
  double rel_to_max = 0;
  std::string what = "tensor";
};

inline std::string describe_index(int64_t flat, at::IntArrayRef sizes) {
  std::string text;
  for (int64_t dim = static_cast<int64_t>(sizes.size()) - 1; dim >= 0; --dim) {
    text = fmt::format("{}{}{}", flat % sizes[dim], text.empty() ? "" : ", ", text);
    flat /= sizes[dim];
  }
  return "[" + text + "]";
}

inline ::testing::AssertionResult tensor_near(const at::Tensor& actual, const at::Tensor& expected,
                                              const Tolerance& tolerance = {}) {
  const std::string& what = tolerance.what;
  if (!actual.defined() || !expected.defined()) {
    return ::testing::AssertionFailure() << what << ": " << (actual.defined() ? "expected" : "actual")
                                         << " tensor is undefined";
  }
  if (actual.sizes() != expected.sizes()) {
    return ::testing::AssertionFailure() << what << ": shape is "
                                         << fmt::format("[{}]", fmt::join(actual.sizes(), ", ")) << ", expected "
                                         << fmt::format("[{}]", fmt::join(expected.sizes(), ", "));
  }
  const at::Tensor a = actual.detach().to(at::kCPU, at::kDouble).contiguous();
  const at::Tensor b = expected.detach().to(at::kCPU, at::kDouble).contiguous();
  const double* pa = a.const_data_ptr<double>();
  const double* pb = b.const_data_ptr<double>();
  double max_expected = 0;
  for (int64_t i = 0; i < b.numel(); ++i) {
    if (std::isfinite(pb[i])) max_expected = std::max(max_expected, std::abs(pb[i]));
  }
  int64_t num_bad = 0, first_bad = -1;
  double worst = 0;
  for (int64_t i = 0; i < a.numel(); ++i) {
    if (pa[i] == pb[i] || (std::isnan(pa[i]) && std::isnan(pb[i]))) continue;
    const double error = std::abs(pa[i] - pb[i]);
    const double allowed = tolerance.abs + tolerance.rel * std::abs(pb[i]) + tolerance.rel_to_max * max_expected;
    if (std::isfinite(pb[i]) && error <= allowed) continue;
    if (num_bad++ == 0) first_bad = i;
    worst = std::max(worst, error);
  }
  if (num_bad == 0) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << fmt::format(
             "{}: first bad element {} is {:.9g}, expected {:.9g}; {} of {} are bad, worst by {:.3g} (abs {:.3g}, rel "
             "{:.3g}, rel_to_max {:.3g}, max|expected| {:.3g})",
             what, describe_index(first_bad, a.sizes()), pa[first_bad], pb[first_bad], num_bad, a.numel(), worst,
             tolerance.abs, tolerance.rel, tolerance.rel_to_max, max_expected);
}

}  // namespace megalith::testing

#define EXPECT_TENSOR_NEAR(actual, ...) EXPECT_TRUE(::megalith::testing::tensor_near(actual, __VA_ARGS__))
#define ASSERT_TENSOR_NEAR(actual, ...) ASSERT_TRUE(::megalith::testing::tensor_near(actual, __VA_ARGS__))
