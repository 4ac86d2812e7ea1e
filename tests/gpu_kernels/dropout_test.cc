// dropout's GPU kernel under emulation: it drops what core/philox.h says, to the bit.
#include "core/philox.h"
#include "gpu_kernels/expect.h"
#include "ops/dropout/kernel.h"
#include "ops/gpu/philox.h"

namespace megalith::ops {
namespace {

using testing::Array;
using testing::Expected;

constexpr uint64_t kDropoutKey = 0xFEDCBA9876543210;  // the upper bit is set

struct DropoutCase {
  Dtype dtype;
  int64_t columns, column_start;
  double p;
  int64_t shift = 0;  // of x and y, in elements
};

void try_dropout(const DropoutCase& c) {
  const std::vector<int64_t> row_ids = {0, 7, int64_t{1} << 33, 12345678901234};
  const auto rows = static_cast<int64_t>(row_ids.size());
  Array x(c.dtype, rows * c.columns, c.shift);
  std::mt19937 generator(static_cast<unsigned>(c.columns));
  x.draw(generator, 5, 1);
  const auto run = [&] {
    std::vector<Array> results;
    results.emplace_back(c.dtype, rows * c.columns, c.shift);
    gpu::dropout({.dtype = c.dtype,
                  .rows = rows,
                  .columns = c.columns,
                  .x = x.data(),
                  .row_ids = row_ids.data(),
                  .column_start = c.column_start,
                  .p = c.p,
                  .key = kDropoutKey,
                  .y = results[0].data()},
                 nullptr);
    return results;
  };
  testing::in_every_order(
      std::to_string(c.columns) + " columns from " + std::to_string(c.column_start) + ", p " + std::to_string(c.p) +
          " " + testing::name_of(c.dtype),
      run, [&](const std::vector<Array>& results) {
        std::vector<Expected> expected;
        for (int64_t i = 0; i < rows * c.columns; ++i) {
          const int64_t row = i / c.columns, column = c.column_start + i % c.columns;
          const double u = uniform_at(kDropoutKey, static_cast<uint64_t>(column),
                                      static_cast<uint64_t>(row_ids[static_cast<size_t>(row)]));
          const double kept = x[i] / (1 - c.p);
          // The scale, the product and the result are rounded.
          const double wide = c.dtype == Dtype::kFloat64 ? 0x1p-52 : 0x1p-23;
          expected.push_back(u >= c.p ? Expected{kept, (testing::unit_of(c.dtype) + 1.1 * wide) * kept} : Expected{});
        }
        testing::expect_near(results[0], expected, "y");
      });
}

TEST(DropoutKernels, DropWhatPhiloxSaysInEveryOrder) {
  // Whole vectors and blocks of Philox; from their middle; ends in their middle; a row of more than one block of
  // threads.
  using Columns = std::vector<int64_t>;
  for (const Dtype dtype : testing::dtypes()) {
    for (const int64_t columns : testing::is_thorough() ? Columns{1, 3, 64, 260, 2056} : Columns{3, 64}) {
      for (const int64_t column_start : {0, 1, 4, 6, 303}) {
        for (const double p : {0.1, 0.97}) {
          try_dropout({dtype, columns, column_start, p});
          if (HasFatalFailure()) return;
        }
      }
    }
    try_dropout({dtype, 0, 0, 0.5});
    try_dropout({dtype, 40, 0, 0.0});
    try_dropout({dtype, 40, 8, 0.5, /*shift=*/1});
    if (HasFatalFailure()) return;
  }
}

TEST(DropoutKernels, ADroppedInfinityIsZero) {
  gpu_emulation::set_settings({});
  const std::vector<int64_t> row_ids = {3};
  for (const Dtype dtype : testing::dtypes()) {
    for (const int64_t columns : {64, 37}) {
      Array x(dtype, columns), y(dtype, columns);
      for (int64_t i = 0; i < columns; ++i) x.set(i, INFINITY);
      gpu::dropout({dtype, 1, columns, x.data(), row_ids.data(), 0, 0.5, kDropoutKey, y.data()}, nullptr);
      for (int64_t i = 0; i < columns; ++i) {
        const bool is_kept = uniform_at(kDropoutKey, static_cast<uint64_t>(i), 3) >= 0.5;
        ASSERT_EQ(y[i], is_kept ? INFINITY : 0.0) << "column " << i;
      }
    }
  }
}

TEST(DropoutKernels, WordsAreThoseOfTheHost) {
  std::mt19937_64 random(5);
  for (int i = 0; i < 200; ++i) {
    const uint64_t key = random(), low = random(), high = random();
    const PhiloxBlock expected = philox(key, {low, high});
    const gpu::PhiloxWords found = gpu::philox_words(key, low, high);
    for (size_t w = 0; w < 4; ++w) ASSERT_EQ(found.words[w], expected[w]);
  }
}

}  // namespace
}  // namespace megalith::ops
