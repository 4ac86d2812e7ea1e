// The GPU kernels of the embedding and of a bias's gradient under emulation: against loops, equal to the bit in every
// order.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "gpu_kernels/expect.h"
#include "ops/linear/gpu_kernel.h"

namespace megalith::ops {
namespace {

using testing::Array;
using testing::Expected;

// A slice of a vocabulary, and tokens of this slice and of others; ids repeat, one of them more often than a thread has
// rows on their way.
struct EmbeddingCase {
  Dtype dtype;
  int64_t columns;
  int64_t shift = 0;    // of the arrays, in elements
  int64_t padding = 0;  // between rows

  static constexpr int64_t kStart = 100, kRows = 7;
  static std::vector<int64_t> ids() {
    std::vector<int64_t> all = {103, 99, 100, 106, 107, 103, int64_t{1} << 40, -1, 106};
    for (int i = 0; i < 19; ++i) all.push_back(i % 5 == 0 ? 100 + i / 5 : 105);
    return all;
  }
  static bool is_own(int64_t id) { return id >= kStart && id < kStart + kRows; }
  int64_t stride() const { return columns + padding; }
  std::string what() const {
    return std::to_string(columns) + " columns of " + testing::name_of(dtype) + (shift != 0 ? " not aligned" : "") +
           (padding != 0 ? " apart" : "");
  }
};

Array drawn_rows(Dtype dtype, int64_t count, int64_t shift) {
  Array array(dtype, count, shift);
  std::mt19937 generator(static_cast<unsigned>(count));
  array.draw(generator, 1, 3);
  return array;
}

void try_gather(const EmbeddingCase& c) {
  const std::vector<int64_t> ids = EmbeddingCase::ids();
  const auto num_ids = static_cast<int64_t>(ids.size());
  const auto bytes = static_cast<int64_t>(testing::bytes_of(c.dtype));
  const Array table = drawn_rows(c.dtype, EmbeddingCase::kRows * c.stride() - c.padding, c.shift);
  const auto run = [&] {
    std::vector<Array> results;
    results.emplace_back(c.dtype, num_ids * c.columns, c.shift);
    gpu::gather_rows({.num_ids = num_ids,
                      .row_bytes = c.columns * bytes,
                      .element_bytes = bytes,
                      .ids = ids.data(),
                      .start = EmbeddingCase::kStart,
                      .num_rows = EmbeddingCase::kRows,
                      .table = table.data(),
                      .table_stride_bytes = c.stride() * bytes,
                      .y = results[0].data()},
                     nullptr);
    return results;
  };
  testing::in_every_order(c.what(), run, [&](const std::vector<Array>& results) {
    std::vector<Expected> expected;
    for (const int64_t id : ids) {
      for (int64_t i = 0; i < c.columns; ++i) {
        expected.push_back({EmbeddingCase::is_own(id) ? table[(id - EmbeddingCase::kStart) * c.stride() + i] : 0, 0});
      }
    }
    testing::expect_near(results[0], expected, "y");
  });
}

// To the bit: one rounding after the other, in the order of tokens, as on the CPU.
double sum_in_wide(Dtype dtype, double sum, double term) {
  return dtype == Dtype::kFloat64 ? sum + term : static_cast<float>(sum) + static_cast<float>(term);
}

void try_scatter(const EmbeddingCase& c) {
  const std::vector<int64_t> ids = EmbeddingCase::ids();
  const auto num_ids = static_cast<int64_t>(ids.size());
  std::vector<int64_t> order(ids.size()), sorted(ids.size());  // no longer, so that an access beyond them is seen
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return ids[static_cast<size_t>(a)] < ids[static_cast<size_t>(b)]; });
  for (size_t i = 0; i < order.size(); ++i) sorted[i] = ids[static_cast<size_t>(order[i])];
  const Dtype wide = testing::wide_of(c.dtype);
  const Array dy = drawn_rows(c.dtype, num_ids * c.stride() - c.padding, c.shift);
  const Array before = drawn_rows(wide, EmbeddingCase::kRows * c.stride(), c.shift);
  const auto run = [&] {
    std::vector<Array> results;
    results.emplace_back(wide, before.count(), c.shift);
    std::memcpy(results[0].data(), before.data(), before.bytes());
    gpu::scatter_rows({.dtype = c.dtype,
                       .num_ids = num_ids,
                       .columns = c.columns,
                       .sorted = sorted.data(),
                       .order = order.data(),
                       .start = EmbeddingCase::kStart,
                       .num_rows = EmbeddingCase::kRows,
                       .dy = dy.data(),
                       .dy_stride = c.stride(),
                       .dw = results[0].data(),
                       .dw_stride = c.stride()},
                      nullptr);
    return results;
  };
  testing::in_every_order(c.what(), run, [&](const std::vector<Array>& results) {
    std::vector<Expected> expected;
    for (int64_t i = 0; i < before.count(); ++i) expected.push_back({before[i], 0});
    for (int64_t token = 0; token < num_ids; ++token) {
      const int64_t id = ids[static_cast<size_t>(token)];
      if (!EmbeddingCase::is_own(id)) continue;
      for (int64_t i = 0; i < c.columns; ++i) {
        double& sum = expected[static_cast<size_t>((id - EmbeddingCase::kStart) * c.stride() + i)].value;
        sum = sum_in_wide(c.dtype, sum, dy[token * c.stride() + i]);
      }
    }
    testing::expect_near(results[0], expected, "dw");
  });
}

template <typename Try>
void try_embedding_everywhere(Try&& try_case) {
  // One; odd; whole vectors; more vectors than a block has threads.
  for (const int64_t columns : {1, 7, 16, 2056}) {
    for (const Dtype dtype : testing::dtypes()) {
      try_case(EmbeddingCase{dtype, columns});
      if (columns == 16) {
        try_case(EmbeddingCase{dtype, columns, /*shift=*/1});
        try_case(EmbeddingCase{dtype, columns, /*shift=*/0, /*padding=*/16});
        try_case(EmbeddingCase{dtype, columns, /*shift=*/0, /*padding=*/3});
      }
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(EmbeddingKernels, PickRowsAndGiveZerosForIdsOfOthers) { try_embedding_everywhere(try_gather); }

TEST(EmbeddingKernels, AddTheGradientsOfATokenInOrder) { try_embedding_everywhere(try_scatter); }

TEST(EmbeddingKernels, TakeNoTokens) {
  gpu_emulation::set_settings({});
  gpu::gather_rows({.num_ids = 0, .row_bytes = 32, .element_bytes = 4, .num_rows = 3, .table_stride_bytes = 32},
                   nullptr);
  gpu::scatter_rows({.dtype = Dtype::kBFloat16, .num_ids = 0, .columns = 16, .num_rows = 3}, nullptr);
}

struct BiasCase {
  Dtype dtype;
  int64_t rows, columns, runs;  // runs 0: as many as the product takes
  int64_t shift = 0, padding = 0;
};

void try_sum_rows(const BiasCase& c) {
  const int64_t stride = c.columns + c.padding;
  const int64_t runs = c.runs > 0 ? c.runs : gpu::runs_of_rows(c.rows, c.columns);
  const Dtype wide = testing::wide_of(c.dtype);
  const Array dy = drawn_rows(c.dtype, c.rows * stride - (c.rows > 0 ? c.padding : 0), c.shift);
  const Array before = drawn_rows(wide, c.columns, 0);
  const auto run = [&] {
    Array parts(wide, runs * c.columns);
    std::vector<Array> results;
    results.emplace_back(wide, c.columns);
    std::memcpy(results[0].data(), before.data(), before.bytes());
    gpu::sum_rows({.dtype = c.dtype,
                   .rows = c.rows,
                   .columns = c.columns,
                   .stride = stride,
                   .dy = dy.data(),
                   .db = results[0].data(),
                   .parts = parts.data(),
                   .runs = runs},
                  nullptr);
    return results;
  };
  testing::in_every_order("(" + std::to_string(c.rows) + ", " + std::to_string(c.columns) + ") " +
                              testing::name_of(c.dtype) + " in " + std::to_string(runs) + " runs",
                          run, [&](const std::vector<Array>& results) {
                            std::vector<Expected> expected;
                            for (int64_t i = 0; i < c.columns; ++i) {
                              Expected sum{before[i], 0};
                              double magnitudes = std::abs(before[i]);
                              for (int64_t row = 0; row < c.rows; ++row) {
                                sum.value += dy[row * stride + i];
                                magnitudes += std::abs(dy[row * stride + i]);
                              }
                              // No sum has more than 64 roundings one after the other.
                              sum.bound = (wide == Dtype::kFloat64 ? 0x1p-53 : 0x1p-24) * 64 * magnitudes;
                              expected.push_back(sum);
                            }
                            testing::expect_near(results[0], expected, "db");
                          });
}

TEST(BiasGradientKernels, EqualLoopsInDoubleInEveryOrder) {
  // One; less rows than slices; a tail of rows and of columns; more columns than a block has.
  constexpr std::pair<int64_t, int64_t> kShapes[] = {{1, 1}, {5, 7}, {67, 264}, {300, 40}, {33, 300}};
  for (const auto& [rows, columns] : kShapes) {
    for (const Dtype dtype : testing::dtypes()) {
      try_sum_rows({dtype, rows, columns, 0});
      try_sum_rows({dtype, rows, columns, 3});
      if (HasFatalFailure()) return;
    }
  }
}

TEST(BiasGradientKernels, TakeRowsThatAreApartOrNotAligned) {
  for (const Dtype dtype : testing::dtypes()) {
    try_sum_rows({.dtype = dtype, .rows = 20, .columns = 16, .runs = 2, .shift = 1});
    try_sum_rows({.dtype = dtype, .rows = 20, .columns = 16, .runs = 2, .padding = 16});
    try_sum_rows({.dtype = dtype, .rows = 20, .columns = 16, .runs = 2, .padding = 3});
    if (HasFatalFailure()) return;
  }
}

TEST(BiasGradientKernels, NoRowsLeaveWhatWasThere) {
  try_sum_rows({.dtype = Dtype::kBFloat16, .rows = 0, .columns = 16, .runs = 0});
}

TEST(BiasGradientKernels, RunsKeepAChipBusyAndHaveRows) {
  EXPECT_EQ(gpu::runs_of_rows(0, 4096), 1);
  EXPECT_EQ(gpu::runs_of_rows(64, 4096), 1);
  EXPECT_EQ(gpu::runs_of_rows(65, 4096), 2);
  EXPECT_EQ(gpu::runs_of_rows(8192, 4096), 64);      // 16 blocks of columns: 1024 blocks
  EXPECT_EQ(gpu::runs_of_rows(1 << 20, 128), 1024);  // no more than that many, however many rows
  EXPECT_EQ(gpu::runs_of_rows(8192, 1 << 20), 1);
}

}  // namespace
}  // namespace megalith::ops
