// nf4's GPU kernel under emulation: every code, scales of groups that begin anywhere, ends of rows.
#include <cstdint>

#include "gpu_kernels/expect.h"
#include "ops/nf4/kernel.h"

namespace megalith::ops {
namespace {

using testing::Array;
using testing::Expected;

constexpr int64_t kFirstBlock = 255;

void try_nf4(Dtype dtype, int64_t rows, int64_t columns, int64_t shift = 0) {
  const int64_t bytes = nf4_bytes_of_row(columns), blocks = nf4_blocks_of_row(columns);
  std::mt19937 generator(static_cast<unsigned>(columns));
  std::vector<uint8_t> codes(static_cast<size_t>(rows * bytes)), scales(static_cast<size_t>(rows * blocks));
  for (uint8_t& code : codes) code = static_cast<uint8_t>(generator() % 256);
  for (uint8_t& scale : scales) scale = static_cast<uint8_t>(generator() % 256);
  // Rows whose blocks follow one another from the last of a group on, and one of another matrix.
  std::vector<int32_t> first_blocks;
  for (int64_t row = 0; row < rows; ++row) first_blocks.push_back(static_cast<int32_t>(kFirstBlock + row * blocks));
  if (rows > 1) first_blocks[1] = 0;
  const auto num_groups = static_cast<size_t>((kFirstBlock + rows * blocks) / 256 + 1);
  std::vector<float> groups, levels;
  for (size_t group = 0; group < num_groups; ++group) {
    groups.push_back(0.25F + static_cast<float>(group));
    groups.push_back(1.5F);
  }
  for (int level = 0; level < 256; ++level) levels.push_back(static_cast<float>(level - 128) / 127.3F);
  const auto run = [&] {
    std::vector<Array> results;
    results.emplace_back(dtype, rows * columns, shift);
    gpu::nf4_dequantise({.dtype = dtype,
                         .rows = rows,
                         .columns = columns,
                         .codes = codes.data(),
                         .scales = scales.data(),
                         .first_blocks = first_blocks.data(),
                         .groups = groups.data(),
                         .levels = levels.data(),
                         .y = results[0].data()},
                        nullptr);
    return results;
  };
  const Nf4Values values;
  testing::in_every_order(
      std::to_string(rows) + " x " + std::to_string(columns) + " " + testing::name_of(dtype), run,
      [&](const std::vector<Array>& results) {
        std::vector<Expected> expected;
        for (int64_t row = 0; row < rows; ++row) {
          for (int64_t column = 0; column < columns; ++column) {
            const uint8_t byte = codes[static_cast<size_t>(row * bytes + column / 2)];
            const int code = column % 2 == 0 ? byte >> 4 : byte & 15;
            const int64_t block = column / 64;
            const auto group = static_cast<size_t>((first_blocks[static_cast<size_t>(row)] + block) / 256);
            const double level = levels[scales[static_cast<size_t>(row * blocks + block)]];
            const auto scale = static_cast<float>(level * groups[2 * group] + groups[2 * group + 1]);
            const double value = double{values.of[code]} * double{scale};
            expected.push_back({value, 1.01 * testing::unit_of(dtype) * std::abs(value) +
                                           testing::smallest_step_of(dtype) + 0x1p-24 * std::abs(value)});
          }
        }
        testing::expect_near(results[0], expected, "y");
      });
}

TEST(Nf4Kernels, ValuesAreThoseOfCodesAndScalesInEveryOrder) {
  for (const Dtype dtype : testing::dtypes()) {
    // Whole vectors; the end of a row in the middle of a byte and of a block; more than one block of threads.
    using Columns = std::vector<int64_t>;
    for (const int64_t columns : testing::is_thorough() ? Columns{1, 7, 64, 136, 4104} : Columns{7, 136}) {
      try_nf4(dtype, 5, columns);
      if (HasFatalFailure()) return;
    }
    try_nf4(dtype, 3, 128, /*shift=*/1);
    try_nf4(dtype, 0, 64);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace megalith::ops
