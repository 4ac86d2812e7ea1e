// dropout: what is dropped depends only on the key and the global position, bit for bit as core/philox.h says.
#include "ops/dropout/dropout.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "core/error.h"
#include "core/philox.h"
#include "ops/philox_words.h"
#include "support/dtypes.h"
#include "support/gradients.h"
#include "support/on_device.h"
#include "support/tensor_near.h"

namespace megalith::ops::dropout_test {
namespace {

using at::Tensor;
using Dropout = testing::OnDevice;
using PhiloxTensors = testing::OnDevice;

constexpr uint64_t kKey = 0xFEDCBA9876543210;  // the upper bit is set

Tensor row_ids_of(std::vector<int64_t> ids) { return testing::tensor(ids, at::kLong); }

TEST_P(Dropout, DropsWhatPhiloxSays) {
  at::manual_seed(1);
  const std::vector<int64_t> ids = {0, 7, int64_t{1} << 33, 12345678901234};
  for (const int64_t columns : {1, 3, 64, 259, 520}) {
    for (const int64_t column_start : {0, 1, 6, 300}) {
      for (const double p : {0.0, 0.1, 0.5, 0.97}) {
        const Tensor x = 1 + testing::rand({4, columns}, at::kDouble);
        Tensor expected = at::zeros_like(x);
        for (int64_t r = 0; r < 4; ++r) {
          for (int64_t c = 0; c < columns; ++c) {
            const double u = uniform_at(kKey, static_cast<uint64_t>(column_start + c), static_cast<uint64_t>(ids[r]));
            if (u >= p) expected[r][c] = x[r][c] / (1 - p);
          }
        }
        const auto what = fmt::format("{} columns from {}, p {}", columns, column_start, p);
        for (const Kernels kernels : {Kernels::kFused, Kernels::kReference}) {
          const Tensor y = dropout(x, row_ids_of(ids), column_start, p, kKey, kernels);
          EXPECT_TENSOR_NEAR(y, expected, {.rel = 1e-15, .what = what});
        }
      }
    }
  }
}

TEST_P(Dropout, EveryDtypeDropsTheSameElements) {
  at::manual_seed(2);
  const Tensor ids = testing::arange(17), x = 1 + testing::rand({17, 37});
  const Tensor is_kept = dropout(x, ids, 5, 0.3, kKey, Kernels::kReference) != 0;
  for (const at::ScalarType dtype : testing::kFloatingDtypes) {
    const Tensor typed = x.to(dtype), y = dropout(typed, ids, 5, 0.3, kKey);
    ASSERT_EQ(y.scalar_type(), dtype);
    // One rounding of the product.
    EXPECT_TENSOR_NEAR(y, typed.to(at::kDouble) * is_kept / 0.7,
                       {.rel = dtype == at::kFloat ? 2e-7 : 0.51 * testing::unit_of(dtype) + 1e-7});
    EXPECT_TENSOR_NEAR(y, dropout(typed, ids, 5, 0.3, kKey, Kernels::kReference), {.what = c10::toString(dtype)});
  }
}

TEST_P(Dropout, ASliceDropsWhatTheWholeDrops) {
  at::manual_seed(3);
  const Tensor x = testing::randn({12, 50}), ids = testing::arange(100, 112);
  const Tensor whole = dropout(x, ids, 0, 0.4, kKey);
  const Tensor slice = dropout(x.narrow(0, 5, 4).narrow(1, 13, 21), ids.narrow(0, 5, 4), 13, 0.4, kKey);
  EXPECT_TENSOR_NEAR(slice, whole.narrow(0, 5, 4).narrow(1, 13, 21));
}

TEST_P(Dropout, ShareOfDroppedElementsIsP) {
  const Tensor y = dropout(testing::ones({1000, 100}), testing::arange(1000), 0, 0.25, kKey);
  // 100,000 draws: one standard deviation is 0.0014.
  EXPECT_NEAR((y == 0).to(at::kDouble).mean().item<double>(), 0.25, 0.006);
}

TEST_P(Dropout, ADroppedInfinityIsZero) {
  const Tensor x = testing::full({1, 64}, std::numeric_limits<float>::infinity());
  for (const Kernels kernels : {Kernels::kFused, Kernels::kReference}) {
    const Tensor y = dropout(x, row_ids_of({3}), 0, 0.5, kKey, kernels);
    EXPECT_FALSE(y.isnan().any().item<bool>());
    EXPECT_TRUE((y == 0).any().item<bool>());
  }
}

TEST_P(Dropout, GradientMatchesFiniteDifferences) {
  at::manual_seed(4);
  const Tensor ids = row_ids_of({4, 9, 2});
  for (const Kernels kernels : {Kernels::kFused, Kernels::kReference}) {
    const auto forward = [&](const std::vector<Tensor>& in) { return dropout(in[0], ids, 3, 0.5, kKey, kernels); };
    const auto backward = [&](const Tensor& dy, const std::vector<Tensor>&) -> std::vector<Tensor> {
      return {dropout(dy, ids, 3, 0.5, kKey, kernels)};
    };
    testing::expect_gradients_match_differences(forward, backward, {testing::randn({3, 7}, at::kDouble)},
                                                kernels == Kernels::kFused ? "fused" : "reference");
  }
}

TEST(Dropout, WrongArgumentsAreNamed) {
  const Tensor x = testing::ones({2, 3}), ids = testing::arange(2);
  EXPECT_THROW(dropout(x, ids, 0, 1.0, kKey), UserError);
  EXPECT_THROW(dropout(x, ids, 0, -0.1, kKey), UserError);
  EXPECT_THROW(dropout(x, ids, -1, 0.1, kKey), UserError);
  EXPECT_THROW(dropout(x, testing::arange(3), 0, 0.1, kKey), UserError);
  EXPECT_THROW(dropout(x, testing::ones({2}), 0, 0.1, kKey), UserError);
}

TEST_P(PhiloxTensors, EqualTheScalarFunction) {
  const std::vector<int64_t> counters = {0, 1, 4294967295, 4294967296, -1, 0x123456789ABCDEF};
  const Tensor low = testing::tensor(counters, at::kLong).unsqueeze(1),
               high = testing::tensor(counters, at::kLong).unsqueeze(0);
  for (int64_t word = 0; word < 4; ++word) {
    const Tensor words = reference::philox_words(kKey, low, high, testing::scalar_tensor(word, at::kLong));
    for (size_t i = 0; i < counters.size(); ++i) {
      for (size_t j = 0; j < counters.size(); ++j) {
        const PhiloxBlock block =
            philox(kKey, {static_cast<uint64_t>(counters[i]), static_cast<uint64_t>(counters[j])});
        EXPECT_EQ(words[i][j].item<int64_t>(), static_cast<int64_t>(block[word])) << i << " " << j << " " << word;
      }
    }
  }
}

MEGALITH_ON_EVERY_DEVICE(Dropout);
MEGALITH_ON_EVERY_DEVICE(PhiloxTensors);

}  // namespace
}  // namespace megalith::ops::dropout_test
