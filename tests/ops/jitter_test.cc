// jitter: the noise depends only on the key and the global position, as core/philox.h says.
#include "ops/jitter/jitter.h"

#include <gtest/gtest.h>

#include <vector>

#include "core/error.h"
#include "core/philox.h"
#include "support/dtypes.h"
#include "support/on_device.h"
#include "support/tensor_near.h"

namespace megalith::ops::jitter_test {
namespace {

using at::Tensor;
using Jitter = testing::OnDevice;

constexpr uint64_t kJitterKey = 0xFEDCBA9876543210;  // the upper bit is set

Tensor ids_of(const std::vector<int64_t>& ids) { return testing::tensor(ids, at::kLong); }

TEST_P(Jitter, MultipliesByWhatPhiloxSays) {
  at::manual_seed(1);
  const std::vector<int64_t> ids = {0, 7, int64_t{1} << 33, 12345678901234};
  for (const int64_t columns : {1, 3, 64, 259}) {
    for (const double eps : {0.0, 0.01, 0.9}) {
      const Tensor x = testing::randn({4, columns}, at::kDouble), on_cpu = x.cpu();
      Tensor expected = at::zeros({4, columns}, at::kDouble);
      for (int64_t r = 0; r < 4; ++r) {
        for (int64_t c = 0; c < columns; ++c) {
          const double u = uniform_at(kJitterKey, static_cast<uint64_t>(c), static_cast<uint64_t>(ids[r]));
          expected[r][c] = on_cpu[r][c] * (1 - eps + 2 * eps * u);
        }
      }
      for (const Kernels kernels : {Kernels::kFused, Kernels::kReference}) {
        // The noise may be rounded once more, where it is made of two numbers; the product is.
        EXPECT_TENSOR_NEAR(jitter(x, ids_of(ids), eps, kJitterKey, kernels), testing::here(expected),
                           {.rel = 1e-15, .what = fmt::format("{} columns, eps {}", columns, eps)});
      }
    }
  }
}

TEST_P(Jitter, EveryDtypeIsTheReferences) {
  at::manual_seed(2);
  const Tensor ids = testing::arange(17), x = testing::randn({17, 40});
  for (const at::ScalarType dtype : testing::kFloatingDtypes) {
    const Tensor typed = x.to(dtype), y = jitter(typed, ids, 0.3, kJitterKey);
    ASSERT_EQ(y.scalar_type(), dtype);
    EXPECT_TENSOR_NEAR(y, jitter(typed, ids, 0.3, kJitterKey, Kernels::kReference), {.what = c10::toString(dtype)});
    EXPECT_FALSE(at::equal(y, typed));
  }
}

TEST_P(Jitter, RowsThatAreApartAndPartsOfThemAreTheWholes) {
  at::manual_seed(3);
  const Tensor x = testing::randn({12, 50}), ids = testing::arange(100, 112);
  const Tensor whole = jitter(x, ids, 0.4, kJitterKey);
  const Tensor part = jitter(x.narrow(0, 5, 4).narrow(1, 0, 21), ids.narrow(0, 5, 4), 0.4, kJitterKey);
  EXPECT_TENSOR_NEAR(part, whole.narrow(0, 5, 4).narrow(1, 0, 21));
}
MEGALITH_ON_EVERY_DEVICE(Jitter);

TEST(JitterErrors, SayWhatIsWrong) {
  const Tensor x = at::ones({3, 4}), ids = at::arange(3);
  EXPECT_THROW(jitter(x, at::arange(2), 0.1, 1), UserError);
  EXPECT_THROW(jitter(x, at::ones({3}), 0.1, 1), UserError);
  EXPECT_THROW(jitter(at::ones({3}), ids, 0.1, 1), UserError);
  EXPECT_THROW(jitter(x, ids, 1.0, 1), UserError);
  EXPECT_THROW(jitter(x, ids, -0.1, 1), UserError);
}

}  // namespace
}  // namespace megalith::ops::jitter_test
