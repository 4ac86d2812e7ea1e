// squared_norm: exact where it can be, repeatable to the bit, loud about what is not finite.
#include "ops/grad_norm/grad_norm.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "core/error.h"
#include "support/dtypes.h"
#include "support/on_device.h"
#include "support/tensor_near.h"

namespace megalith::ops::grad_norm_test {
namespace {

using at::Tensor;
using SquaredNorm = testing::OnDevice;

TEST_P(SquaredNorm, MatchesALoopInLongDouble) {
  at::manual_seed(1);
  for (const at::ScalarType dtype : testing::kFloatingDtypes) {
    std::vector<Tensor> tensors;
    for (const int64_t count : {0, 1, 7, 16, 17, 131, 70001}) tensors.push_back(testing::randn({count}).to(dtype));
    tensors.push_back(testing::randn({3, 5, 7}).to(dtype));
    long double expected = 0;
    for (const Tensor& tensor : tensors) {
      const Tensor wide = tensor.to(at::kCPU, at::kDouble).flatten();
      for (int64_t i = 0; i < wide.numel(); ++i) {
        const long double value = wide.const_data_ptr<double>()[i];
        expected += value * value;
      }
    }
    for (const Kernels kernels : {Kernels::kFused, Kernels::kReference}) {
      const Tensor norm = squared_norm(tensors, kernels);
      ASSERT_EQ(norm.scalar_type(), at::kDouble);
      ASSERT_EQ(norm.dim(), 0);
      // Sums of positive numbers in double: the error stays far below count * 2^-53.
      EXPECT_NEAR(norm.item<double>(), static_cast<double>(expected), 1e-13 * static_cast<double>(expected))
          << c10::toString(dtype);
    }
  }
}

TEST(SquaredNorm, RepeatsToTheBitWithAnyNumberOfThreads) {
  at::manual_seed(2);
  const std::vector<Tensor> tensors{testing::randn({200001}), testing::randn({31}),
                                    testing::randn({99999}).to(at::kBFloat16)};
  const int before = at::get_num_threads();
  std::vector<double> results;
  for (const int threads : {1, 2, 3, 8}) {
    at::set_num_threads(threads);
    results.push_back(squared_norm(tensors).item<double>());
  }
  at::set_num_threads(before);
  for (const double result : results) EXPECT_EQ(result, results[0]);
}

TEST_P(SquaredNorm, LargeGradientsDoNotOverflow) {
  EXPECT_DOUBLE_EQ(squared_norm({testing::full({100}, 1e38, at::kFloat)}).item<double>(),
                   100 * std::pow(static_cast<double>(1e38f), 2));
}

TEST_P(SquaredNorm, InfinityAndNanPassThrough) {
  for (const at::ScalarType dtype : testing::kFloatingDtypes) {
    for (const int64_t where : {0, 40, 99}) {
      Tensor x = testing::ones({100}, dtype);
      x[where] = -std::numeric_limits<double>::infinity();
      EXPECT_EQ(squared_norm({x}).item<double>(), std::numeric_limits<double>::infinity());
      x[where] = std::numeric_limits<double>::quiet_NaN();
      EXPECT_TRUE(std::isnan(squared_norm({x}).item<double>()));
    }
  }
}

TEST_P(SquaredNorm, NothingHasNoNorm) {
  EXPECT_EQ(squared_norm({}).item<double>(), 0);
  EXPECT_EQ(squared_norm({testing::zeros({0})}).item<double>(), 0);
}

TEST_P(SquaredNorm, ZerosAreCountedInEveryDtype) {
  at::manual_seed(3);
  std::vector<Tensor> tensors{testing::zeros({0})};
  int64_t expected = 0;
  for (const at::ScalarType dtype : testing::kFloatingDtypes) {
    for (const int64_t count : {1, 17, 40001}) {
      Tensor x = testing::randn({count}).to(dtype);
      x.narrow(0, 0, (count + 1) / 2).zero_();
      x[0] = -0.0;
      expected += x.numel() - at::count_nonzero(x).item<int64_t>();
      tensors.push_back(x);
    }
  }
  for (const Kernels kernels : {Kernels::kFused, Kernels::kReference}) {
    const Tensor sums = squared_norm_and_zeros(tensors, kernels);
    ASSERT_EQ(sums.sizes(), at::IntArrayRef({2}));
    EXPECT_EQ(sums[0].item<double>(), squared_norm(tensors, kernels).item<double>());
    EXPECT_EQ(sums[1].item<double>(), static_cast<double>(expected));
  }
  EXPECT_EQ(squared_norm_and_zeros({}).sum().item<double>(), 0);
}

TEST(SquaredNorm, WrongTensorsAreNamed) {
  EXPECT_THROW(squared_norm({testing::ones({3}, at::kInt)}), UserError);
  EXPECT_THROW(squared_norm({testing::ones({3, 4}).t()}), UserError);
  EXPECT_THROW(squared_norm_and_zeros({testing::ones({3, 4}).t()}), UserError);
}

MEGALITH_ON_EVERY_DEVICE(SquaredNorm);

}  // namespace
}  // namespace megalith::ops::grad_norm_test
