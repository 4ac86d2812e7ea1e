// Sinkhorn's balance: the kernel ends where the reference does, and both are balanced.
#include "ops/sinkhorn/sinkhorn.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "support/on_device.h"
#include "support/tensor_near.h"

namespace megalith::ops::sinkhorn_test {
namespace {

using at::Tensor;
using Sinkhorn = testing::OnDevice;

TEST_P(Sinkhorn, EqualsTheReferenceAndIsBalanced) {
  at::manual_seed(1);
  struct Size {
    int64_t rows, columns;
  };
  for (const auto& [rows, columns] : {Size{1, 1}, {40, 4}, {60, 65}, {33, 130}}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
      const Tensor x = testing::randn({rows, columns}, dtype);
      x.select(1, 0).add_(2);  // most want the first
      const Tensor y = sinkhorn(x);
      ASSERT_EQ(y.scalar_type(), at::kDouble);
      // Sums in another order, in each of some tens of rounds.
      EXPECT_TENSOR_NEAR(y, sinkhorn(x, Kernels::kReference), {.rel = 1e-11});
      // Columns were scaled last, with 1e-8 beside sums of 1e-3 and more; rows when the factors still moved by 1e-4.
      EXPECT_TENSOR_NEAR(y.sum(0), at::full_like(y[0], 1.0 / static_cast<double>(columns)), {.rel = 1e-5});
      EXPECT_TENSOR_NEAR(y.sum(1), at::full_like(y.select(1, 0), 1.0 / static_cast<double>(rows)), {.rel = 0.01});
    }
  }
}

TEST_P(Sinkhorn, EndsWhereFactorsNeverRest) {
  // Beyond fp32's exponents, and with columns that no row wants.
  at::manual_seed(2);
  const Tensor x = testing::randn({40, 4}, at::kDouble);
  for (const double scale : {50.0, 200.0}) EXPECT_TRUE(sinkhorn(x * scale).isfinite().all().item<bool>()) << scale;
  EXPECT_EQ(sinkhorn(x.narrow(0, 0, 0)).sizes(), (std::vector<int64_t>{0, 4}));
}

TEST_P(Sinkhorn, MoreColumnsThanTheKernelHoldsAreBalancedToo) {
  at::manual_seed(3);
  const Tensor x = testing::randn({5, 513});
  EXPECT_TENSOR_NEAR(sinkhorn(x), sinkhorn(x, Kernels::kReference), {.rel = 1e-11});
}
MEGALITH_ON_EVERY_DEVICE(Sinkhorn);

TEST(SinkhornErrors, SayWhatIsWrong) {
  EXPECT_THROW(sinkhorn(at::ones({3})), UserError);
  EXPECT_THROW(sinkhorn(at::ones({3, 2}, at::kBFloat16)), UserError);
}

}  // namespace
}  // namespace megalith::ops::sinkhorn_test
