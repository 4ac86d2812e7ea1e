// jitter's GPU kernel under emulation: the noise is what core/philox.h says.
#include "core/philox.h"
#include "gpu_kernels/expect.h"
#include "ops/jitter/kernel.h"

namespace megalith::ops {
namespace {

using testing::Array;
using testing::Expected;

constexpr uint64_t kJitterKey = 0xFEDCBA9876543210;  // the upper bit is set

void try_jitter(Dtype dtype, int64_t columns, double eps, int64_t shift = 0) {
  const std::vector<int64_t> row_ids = {0, 7, int64_t{1} << 33, 12345678901234};
  const auto rows = static_cast<int64_t>(row_ids.size());
  Array x(dtype, rows * columns, shift);
  std::mt19937 generator(static_cast<unsigned>(columns));
  x.draw(generator, 0, 3);
  const auto run = [&] {
    std::vector<Array> results;
    results.emplace_back(dtype, rows * columns, shift);
    gpu::jitter({.dtype = dtype,
                 .rows = rows,
                 .columns = columns,
                 .x = x.data(),
                 .row_ids = row_ids.data(),
                 .eps = eps,
                 .key = kJitterKey,
                 .y = results[0].data()},
                nullptr);
    return results;
  };
  testing::in_every_order(
      std::to_string(columns) + " columns, eps " + std::to_string(eps) + " " + testing::name_of(dtype), run,
      [&](const std::vector<Array>& results) {
        std::vector<Expected> expected;
        for (int64_t i = 0; i < rows * columns; ++i) {
          const double u = uniform_at(kJitterKey, static_cast<uint64_t>(i % columns),
                                      static_cast<uint64_t>(row_ids[static_cast<size_t>(i / columns)]));
          const double product = x[i] * (1 - eps + 2 * eps * u);
          // Noise and product are rounded, in 16 bits the noise to 32 before.
          const double bound =
              (2.1 * testing::unit_of(dtype) + 0x1p-51) * std::abs(product) + testing::smallest_step_of(dtype);
          expected.push_back({product, bound + (testing::unit_of(dtype) > 0x1p-24 ? 0x1p-23 * std::abs(product) : 0)});
        }
        testing::expect_near(results[0], expected, "y");
      });
}

TEST(JitterKernels, MultiplyByWhatPhiloxSaysInEveryOrder) {
  // Whole vectors; ends in the middle of a block of Philox; a row of more than one block of threads.
  using Columns = std::vector<int64_t>;
  for (const Dtype dtype : testing::dtypes()) {
    for (const int64_t columns : testing::is_thorough() ? Columns{1, 3, 64, 259, 2056} : Columns{3, 64}) {
      for (const double eps : {0.01, 0.9}) try_jitter(dtype, columns, eps);
      if (HasFatalFailure()) return;
    }
    try_jitter(dtype, 40, 0.5, /*shift=*/1);
    try_jitter(dtype, 0, 0.5);
    if (HasFatalFailure()) return;
  }
}

TEST(JitterKernels, WithoutNoiseNothingChanges) {
  gpu_emulation::set_settings({});
  const std::vector<int64_t> row_ids = {3};
  for (const Dtype dtype : testing::dtypes()) {
    Array x(dtype, 37), y(dtype, 37);
    std::mt19937 generator(5);
    x.draw(generator, 0, 1);
    gpu::jitter({dtype, 1, 37, x.data(), row_ids.data(), 0, kJitterKey, y.data()}, nullptr);
    ASSERT_TRUE(y.has_bits_of(x)) << testing::name_of(dtype);
  }
}

}  // namespace
}  // namespace megalith::ops
