// 64 Philox blocks decide 256 columns at a time.
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

#include "ops/cpu/lanes.h"
#include "ops/cpu/philox_lanes.h"
#include "ops/dropout/kernel.h"

namespace megalith::ops::cpu::CPU_CAPABILITY {
namespace {

constexpr int kBlocks = 64;

template <typename T>
void drop_row(const DropoutCall& a, const T* x, uint64_t row_id, T* y) {
  using W = Wide<T>;
  const auto threshold = static_cast<uint64_t>(std::ceil(a.p * 0x1p32));  // drops if word * 2^-32 < p
  const Lanes<T> scale(static_cast<W>(1 / (1 - a.p)));
  uint64_t low[kBlocks], high[kBlocks];
  uint32_t words[4][kBlocks];
  W is_kept[4 * kBlocks];
  std::fill(high, high + kBlocks, row_id);
  const int64_t end = a.column_start + a.columns;
  for (int64_t block = a.column_start / 4; block * 4 < end; block += kBlocks) {
    for (int i = 0; i < kBlocks; ++i) low[i] = static_cast<uint64_t>(block) + i;
    philox_lanes(a.key, low, high, words);
    for (int i = 0; i < kBlocks; ++i) {
      for (int word = 0; word < 4; ++word) is_kept[4 * i + word] = words[word][i] >= threshold ? W(1) : W(0);
    }
    const int64_t first = std::max(block * 4, a.column_start), last = std::min((block + kBlocks) * 4, end);
    const W* mask = is_kept + (first - block * 4);
    for_each_lanes<T>(last - first, [&](int64_t i, auto count) {
      const int64_t column = first - a.column_start + i;
      const Lanes<T> zero(W(0));
      // Selects: an infinity times 0 would be NaN.
      store(y + column, Lanes<T>::blendv(zero, load(x + column, count) * scale, load(mask + i, count) > zero), count);
    });
  }
}

}  // namespace

void dropout(const DropoutCall& a) {
  with_type(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    at::parallel_for(0, a.rows, 1 + 4096 / (a.columns + 1), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        drop_row<T>(a, static_cast<const T*>(a.x) + row * a.columns, static_cast<uint64_t>(a.row_ids[row]),
                    static_cast<T*>(a.y) + row * a.columns);
      }
    });
  });
}

}  // namespace megalith::ops::cpu::CPU_CAPABILITY
