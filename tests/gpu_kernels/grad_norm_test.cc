// The GPU kernels of squared_norm under emulation: against a loop in long double, equal to the bit in every order and
// wherever tensors begin.
#include <cmath>
#include <limits>

#include "gpu_kernels/expect.h"
#include "ops/grad_norm/kernel.h"

namespace megalith::ops {
namespace {

using testing::Array;
using testing::Expected;

// {squares and zeros}
std::vector<Array> sums_of(const std::vector<Array>& tensors) {
  std::vector<SquaredPiece> whole;
  int64_t num_pieces = 0;
  for (const Array& tensor : tensors) {
    whole.push_back({tensor.dtype(), tensor.data(), tensor.count()});
    num_pieces += gpu::num_squared_pieces(tensor.count());
  }
  Array scratch(Dtype::kFloat64, 2 * num_pieces), sums(Dtype::kFloat64, 2);
  gpu::gradient_sums({.tensors = whole.data(),
                      .num_tensors = static_cast<int64_t>(whole.size()),
                      .scratch = static_cast<double*>(scratch.data()),
                      .sums = static_cast<double*>(sums.data())},
                     nullptr);
  std::vector<Array> results;
  results.push_back(std::move(sums));
  return results;
}

std::vector<Expected> expected_sums(const std::vector<Array>& tensors) {
  long double square = 0;
  double zeros = 0;
  for (const Array& tensor : tensors) {
    for (int64_t i = 0; i < tensor.count(); ++i) {
      const long double value = tensor[i];
      square += value * value;
      zeros += value == 0 ? 1 : 0;
    }
  }
  // Sums of positive numbers in double.
  return {{static_cast<double>(square), 1e-13 * static_cast<double>(square)}, {zeros, 0}};
}

void expect_sums(const std::string& what, const std::vector<Array>& tensors) {
  testing::in_every_order(
      what, [&] { return sums_of(tensors); },
      [&](const std::vector<Array>& results) { testing::expect_near(results[0], expected_sums(tensors), "sums"); });
}

Array drawn(Dtype dtype, int64_t count, int64_t shift, unsigned seed) {
  std::mt19937 generator(seed);
  Array tensor(dtype, count, shift);
  tensor.draw(generator, 0, 3);
  for (int64_t i = 0; i < count; i += 3) tensor.set(i, i % 2 == 0 ? 0.0 : -0.0);
  return tensor;
}

TEST(GradNormKernels, EqualLoopsInEveryOrder) {
  // Nothing, one, less than a group, a tail, more than the threads of a block take at once, one and several pieces.
  std::vector<int64_t> counts{0, 1, 3, 17, 1025};
  if (testing::is_thorough()) counts.insert(counts.end(), {32767, 32768, 32769, 70001});
  std::vector<Array> tensors;
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kBFloat16, Dtype::kFloat64, Dtype::kFloat16}) {
    for (const int64_t count : counts) tensors.push_back(drawn(dtype, count, 0, static_cast<unsigned>(count)));
  }
  expect_sums("four dtypes", tensors);
}

TEST(GradNormKernels, TakeMoreTensorsThanALaunchHasRoomFor) {
  if (!testing::is_thorough())
    GTEST_SKIP() << "blocks for each of many tensors: no thread meets what it did not before";
  std::vector<Array> tensors;
  for (int i = 0; i < 330; ++i) {
    tensors.push_back(drawn(Dtype::kFloat32, 1 + i % 5, 0, static_cast<unsigned>(i)));
  }
  expect_sums("many tensors", tensors);
}

TEST(GradNormKernels, WhereATensorBeginsDoesNotMatter) {
  for (const Dtype dtype : testing::dtypes()) {
    std::vector<Array> aligned, shifted;
    aligned.push_back(drawn(dtype, 2057, 0, 1));
    shifted.push_back(drawn(dtype, 2057, 1, 1));
    expect_sums(std::string("shifted ") + testing::name_of(dtype), shifted);
    EXPECT_TRUE(sums_of(aligned)[0].has_bits_of(sums_of(shifted)[0])) << testing::name_of(dtype);
  }
}

TEST(GradNormKernels, NothingHasNoNorm) { testing::expect_near(sums_of({})[0], {{}, {}}, "sums"); }

TEST(GradNormKernels, WhatIsNotFiniteIsSeen) {
  std::vector<Array> tensors;
  tensors.push_back(drawn(Dtype::kBFloat16, 300, 0, 1));
  tensors.push_back(drawn(Dtype::kFloat32, 300, 0, 2));
  tensors[1].set(299, -std::numeric_limits<double>::infinity());
  EXPECT_EQ(sums_of(tensors)[0][0], std::numeric_limits<double>::infinity());
  tensors[0].set(7, std::nan(""));
  EXPECT_TRUE(std::isnan(sums_of(tensors)[0][0]));
}

TEST(GradNormKernels, LargeGradientsDoNotOverflow) {
  std::vector<Array> tensors;
  tensors.emplace_back(Dtype::kFloat32, 100);
  for (int64_t i = 0; i < 100; ++i) tensors[0].set(i, 1e38);
  const double one = static_cast<double>(1e38f);
  EXPECT_DOUBLE_EQ(sums_of(tensors)[0][0], 100 * one * one);
}

}  // namespace
}  // namespace megalith::ops
