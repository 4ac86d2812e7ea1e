// The Newton-Schulz iteration against the singular value decomposition: it keeps the singular vectors and applies the
// steps' polynomials to the singular values.
#include "optim/newton_schulz.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "support/tensor_near.h"

namespace megalith {
namespace {

using Steps = std::vector<NewtonSchulzStep>;

at::Tensor sample_matrix(int64_t rows, int64_t columns) {
  const at::Tensor i = at::arange(rows * columns, at::kDouble);
  return at::sin(0.37 * i * i + 0.3).view({rows, columns}) + at::eye(rows, columns, at::kDouble);
}

at::Tensor by_singular_values(const at::Tensor& matrix, const Steps& steps) {
  auto [u, s, vh] = at::linalg_svd(matrix, /*full_matrices=*/false);
  at::Tensor x = s / matrix.norm();
  for (const auto& [a, b, c] : steps) x = a * x + b * x.pow(3) + c * x.pow(5);
  return (u * x).matmul(vh);
}

TEST(NewtonSchulz, AppliesThePolynomialsToTheSingularValues) {
  for (const std::string& word : newton_schulz_words()) {
    for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{7, 7}, {3, 11}, {11, 3}, {1, 5}, {5, 1}}) {
      const at::Tensor matrix = sample_matrix(rows, columns);
      const Steps steps = newton_schulz_steps(word, 5);
      // Rounding, which the first steps enlarge by up to 8 each.
      EXPECT_TENSOR_NEAR(orthogonalize(matrix, steps), by_singular_values(matrix, steps), {.abs = 1e-9, .what = word});
    }
  }
}

// Five steps with these coefficients: singular values of 0.01 to 1 end between 0.68 and 1.13, those of all
// sets but "simple" between 0.87 and 1.12.
TEST(NewtonSchulz, MakesAMatrixNearlyOrthogonal) {
  for (const std::string& word : newton_schulz_words()) {
    const at::Tensor near = orthogonalize(sample_matrix(8, 13), newton_schulz_steps(word, 5));
    const at::Tensor values = std::get<1>(at::linalg_svd(near, false));
    EXPECT_GT(values.min().item<double>(), word == "simple" ? 0.68 : 0.87) << word;
    EXPECT_LT(values.max().item<double>(), word == "simple" ? 1.14 : 1.13) << word;
  }
}

TEST(NewtonSchulz, OnlyTheDirectionOfTheMatrixCounts) {
  const at::Tensor matrix = sample_matrix(6, 4);
  const Steps steps = newton_schulz_steps("quintic", 5);
  const at::Tensor expected = orthogonalize(matrix, steps);
  for (const double factor : {1e-10, 1e10}) {
    EXPECT_TENSOR_NEAR(orthogonalize(matrix * factor, steps), expected, {.abs = 1e-10, .what = "scaled"});
  }
}

TEST(NewtonSchulz, TheZeroMatrixStaysZero) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const at::Tensor zero = at::zeros({3, 5}, dtype);
    EXPECT_TRUE(at::equal(orthogonalize(zero, newton_schulz_steps("simple", 5)), zero));
  }
}

TEST(NewtonSchulz, KeepsTheDtypeAndBf16IsNear) {
  const at::Tensor matrix = sample_matrix(16, 24);
  const Steps steps = newton_schulz_steps("quintic", 5);
  const at::Tensor narrow = orthogonalize(matrix.to(at::kBFloat16), steps);
  EXPECT_EQ(narrow.scalar_type(), at::kBFloat16);
  // Elements are about 0.25; five steps of a few products with 2^-9 each.
  EXPECT_TENSOR_NEAR(narrow, orthogonalize(matrix, steps), {.abs = 0.06, .what = "bf16"});
}

TEST(NewtonSchulz, StepsBeginAgainOrRepeatTheLast) {
  const Steps simple = newton_schulz_steps("simple", 3);
  EXPECT_EQ(simple, Steps(3, {3.4445, -4.7750, 2.0315}));
  const Steps quintic = newton_schulz_steps("quintic", 7);
  EXPECT_EQ(quintic[5], quintic[0]);
  EXPECT_EQ(quintic[6], quintic[1]);
  EXPECT_EQ(quintic[4], (NewtonSchulzStep{2.8366, -3.0525, 1.2012}));
  const Steps polar = newton_schulz_steps("polar_express", 10);
  EXPECT_EQ(polar[9], polar[7]);
  EXPECT_EQ(polar[8], (NewtonSchulzStep{1.8750, -1.2500, 0.3750}));
  EXPECT_THROW(newton_schulz_steps("sextic", 5), InternalError);
}

}  // namespace
}  // namespace megalith
