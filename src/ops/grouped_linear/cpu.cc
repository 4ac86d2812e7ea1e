// Products of many matrices: blocks of a and b are widened into scratch memory and multiplied there.
#include <algorithm>

#include "ops/cpu/plain_product.h"
#include "ops/cpu/tiles.h"
#include "ops/grouped_linear/kernel.h"

namespace megalith::ops::cpu::CPU_CAPABILITY {
namespace {

constexpr int64_t kGroupedDepth = 128;  // 64 columns of b are then 32 KB of fp32
constexpr int64_t kGroupedRows = WidenedProducts::kTaskRows, kGroupedColumns = WidenedProducts::kTaskColumns;

template <typename T>
void widen_rows(const T* x, int64_t stride, int64_t rows, int64_t columns, Wide<T>* out, int64_t out_stride) {
  for (int64_t r = 0; r < rows; ++r) {
    const T* from = x + r * stride;
    Wide<T>* to = out + r * out_stride;
    for_each_lanes<T>(columns, [&](int64_t c, auto n) { store(to + c, load(from + c, n), n); });
  }
}

// out (columns, rows) = x^T, in squares that stay in the first cache.
template <typename T>
void widen_transposed(const T* x, int64_t stride, int64_t rows, int64_t columns, Wide<T>* out, int64_t out_stride) {
  constexpr int64_t kSide = 16;
  Wide<T> square[kSide * kSide];
  for (int64_t row = 0; row < rows; row += kSide) {
    for (int64_t column = 0; column < columns; column += kSide) {
      const int64_t height = std::min(kSide, rows - row), width = std::min(kSide, columns - column);
      widen_rows(x + row * stride + column, stride, height, width, square, kSide);
      for (int64_t c = 0; c < width; ++c) {
        Wide<T>* to = out + (column + c) * out_stride + row;
        for (int64_t r = 0; r < height; ++r) to[r] = square[r * kSide + c];
      }
    }
  }
}

template <typename T>
void store_sums(const WidenedProducts& all, const WidenedProduct& p, const Wide<T>* sums, int64_t row, int64_t rows,
                int64_t column, int64_t columns) {
  using W = Wide<T>;
  for (int64_t r = 0; r < rows; ++r) {
    const W* from = sums + r * kGroupedColumns;
    const int64_t place = (row + r) * p.c_stride + column;
    for_each_lanes<T>(columns, [&](int64_t c, auto n) {
      const Lanes<T> sum = load(from + c, n);
      if (!all.c_is_wide) return store(static_cast<T*>(p.c) + place + c, sum, n);
      W* to = static_cast<W*>(p.c) + place + c;
      store(to, all.accumulate ? load(to, n) + sum : sum, n);
    });
  }
}

template <typename W>
struct WidenedScratch {
  W *left, *right, *sums;
};

template <typename T>
void multiply_widened(const WidenedProducts& all, const WidenedProduct& p, int64_t task,
                      const WidenedScratch<Wide<T>>& scratch) {
  using W = Wide<T>;
  const int64_t num_runs = (p.m + kGroupedRows - 1) / kGroupedRows;
  const int64_t row = task % num_runs * kGroupedRows, rows = std::min(kGroupedRows, p.m - row);
  const int64_t column = task / num_runs * kGroupedColumns, columns = std::min(kGroupedColumns, p.n - column);
  const int64_t padded = (columns + 15) / 16 * 16;
  std::fill_n(scratch.sums, rows * kGroupedColumns, W(0));
  if (columns < padded) std::fill_n(scratch.right, kGroupedDepth * kGroupedColumns, W(0));
  for (int64_t k = 0; k < p.k; k += kGroupedDepth) {
    const int64_t depth = std::min(kGroupedDepth, p.k - k);
    const T* b = static_cast<const T*>(p.b);
    if (all.b_is_transposed)
      widen_transposed(b + column * p.b_stride + k, p.b_stride, columns, depth, scratch.right, kGroupedColumns);
    else
      widen_rows(b + k * p.b_stride + column, p.b_stride, depth, columns, scratch.right, kGroupedColumns);
    const T* a = static_cast<const T*>(p.a);
    const W* left = scratch.left;
    int64_t left_stride = kGroupedDepth;
    if (all.a_is_transposed) {
      widen_transposed(a + k * p.a_stride + row, p.a_stride, depth, rows, scratch.left, kGroupedDepth);
    } else if constexpr (std::is_same_v<T, W>) {
      left = a + row * p.a_stride + k;
      left_stride = p.a_stride;
    } else {
      widen_rows(a + row * p.a_stride + k, p.a_stride, rows, depth, scratch.left, kGroupedDepth);
    }
    plain_product(rows, padded, depth, left, left_stride, scratch.right, kGroupedColumns, scratch.sums, kGroupedColumns,
                  /*accumulate=*/true);
  }
  store_sums<T>(all, p, scratch.sums, row, rows, column, columns);
}

}  // namespace

void widened_products(const WidenedProducts& all, std::atomic<int64_t>* next) {
  with_type(all.dtype, [&](auto zero) {
    using T = decltype(zero);
    Scratch memory;
    const WidenedScratch<Wide<T>> scratch{.left = memory.take<Wide<T>>(kGroupedRows * kGroupedDepth),
                                          .right = memory.take<Wide<T>>(kGroupedDepth * kGroupedColumns),
                                          .sums = memory.take<Wide<T>>(kGroupedRows * kGroupedColumns)};
    int64_t i = 0;  // rises with the counter
    for (int64_t task; (task = next->fetch_add(1)) < all.num_tasks;) {
      while (i + 1 < all.num_products && task >= all.products[i + 1].first_task) ++i;
      multiply_widened<T>(all, all.products[i], task - all.products[i].first_task, scratch);
    }
  });
}

}  // namespace megalith::ops::cpu::CPU_CAPABILITY
