// bf16 products by oneDNN's block kernel: packed panels of b stay in L2 while the rows of a pass by.
#include "ops/cpu/tiles.h"
#include "ops/linear/kernel.h"

namespace megalith::ops::cpu::CPU_CAPABILITY {
namespace {

int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// Zero-pads columns.
void copy_padded(const uint16_t* x, int64_t stride, int64_t rows, int64_t columns, int64_t padded, uint16_t* out,
                 int64_t out_stride) {
  for (int64_t r = 0; r < rows; ++r) {
    std::memcpy(out + r * out_stride, x + r * stride, static_cast<size_t>(columns) * sizeof(uint16_t));
    std::memset(out + r * out_stride + columns, 0, static_cast<size_t>(padded - columns) * sizeof(uint16_t));
  }
}

// b's rows are the panel's columns.
void pack_transposed(const MatrixProduct& call, int64_t column, int64_t first_k, int64_t count, uint16_t* out) {
  constexpr int64_t kDepth = 64;
  const int64_t width = smaller(kProductPanel, call.n - column);
  const uint16_t* b = call.b + column * call.b_stride + first_k;
  const bool has_pairs = call.b_stride % 2 == 0 && reinterpret_cast<uintptr_t>(b) % 4 == 0 && width == kProductPanel;
  alignas(64) uint16_t copy[kProductPanel * kDepth];
  if (!has_pairs) std::memset(copy, 0, sizeof(copy));
  for (int64_t k = 0; k < count; k += kDepth) {
    const int64_t depth = smaller(kDepth, count - k), pairs = (depth + 1) / 2;
    if (has_pairs && depth % 2 == 0) {
      transpose_pairs(b + k, call.b_stride, kProductPanel, pairs, out + k * kProductPanel, kProductPanel);
    } else {
      copy_padded(b + k, call.b_stride, width, depth, 2 * pairs, copy, kDepth);
      transpose_pairs(copy, kDepth, kProductPanel, pairs, out + k * kProductPanel, kProductPanel);
    }
  }
}

void pack_plain(const MatrixProduct& call, int64_t column, int64_t first_k, int64_t count, uint16_t* out) {
  const int64_t width = smaller(kProductPanel, call.n - column);
  alignas(64) uint16_t rows[2][kProductPanel] = {};
  for (int64_t k = 0; k < count; k += 2, out += 2 * kProductPanel) {
    const uint16_t* b = call.b + (first_k + k) * call.b_stride + column;
    if (width == kProductPanel && k + 1 < count) {
      interleave(b, b + call.b_stride, kProductPanel, out);
      continue;
    }
    const auto bytes = static_cast<size_t>(width) * sizeof(uint16_t);
    std::memcpy(rows[0], b, bytes);
    if (k + 1 < count)
      std::memcpy(rows[1], b + call.b_stride, bytes);
    else
      std::memset(rows[1], 0, bytes);
    interleave(rows[0], rows[1], kProductPanel, out);
  }
}

void prefetch_rows_of(const uint16_t* y, int64_t stride, int64_t rows, int64_t columns) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; c += 32) __builtin_prefetch(y + r * stride + c, 1, 2);
  }
}

void store_rounded(const float* sums, int64_t sums_stride, int64_t rows, int64_t columns, const uint16_t* bias,
                   uint16_t* y, int64_t y_stride) {
  using BFloat16 = c10::BFloat16;
  const auto* offsets = reinterpret_cast<const BFloat16*>(bias);
  for (int64_t r = 0; r < rows; ++r) {
    const float* from = sums + r * sums_stride;
    uint16_t* to = y + r * y_stride;
    for_each_lanes<BFloat16>(columns, [&](int64_t c, auto n) {
      Lanes<float> sum = load(from + c, n);
      if (offsets != nullptr) sum = sum + load(offsets + c, n);
      if constexpr (std::is_same_v<decltype(n), FullCount<BFloat16>>)
        store_bf16(to + c, sum);
      else
        store(reinterpret_cast<BFloat16*>(to) + c, sum, n);
    });
  }
}

struct ProductScratch {
  uint16_t *panels, *rows;  // rows: a's if k is odd, as bf16 are multiplied in pairs
  float* sums;
};

void multiply_task(const MatrixProduct& call, int64_t first_row, int64_t num_rows, int64_t column,
                   const ProductScratch& scratch) {
  const int64_t width = call.task_columns(), columns = smaller(width, call.n - column);
  const int64_t panel_size = kProductPanel * call.block_k;
  const bool has_one_block = call.k <= call.block_k;
  for (int64_t first_k = 0; first_k < call.k; first_k += call.block_k) {
    const int64_t count = smaller(call.block_k, call.k - first_k), padded = (count + 1) / 2 * 2;
    const bool is_last = first_k + count == call.k;
    for (int64_t c = 0; c < columns; c += kProductPanel) {
      uint16_t* panel = scratch.panels + c / kProductPanel * panel_size;
      (call.b_is_transposed ? pack_transposed : pack_plain)(call, column + c, first_k, count, panel);
    }
    for (int64_t r = 0; r < num_rows; r += call.block_rows) {
      const int64_t rows = smaller(call.block_rows, num_rows - r);
      const uint16_t* a = call.a + (first_row + r) * call.a_stride + first_k;
      int64_t a_stride = call.a_stride;
      if (padded != count) {
        copy_padded(a, a_stride, rows, count, padded, scratch.rows, call.block_k);
        a = scratch.rows;
        a_stride = call.block_k;
      }
      float* sums = scratch.sums + (has_one_block ? 0 : r * width);
      uint16_t* y = call.y + (first_row + r) * call.y_stride + column;
      if (is_last) prefetch_rows_of(y, call.y_stride, rows, columns);
      for (int64_t c = 0; c < columns; c += kProductPanel) {
        tile_product(rows, kProductPanel, padded, a, a_stride, scratch.panels + c / kProductPanel * panel_size,
                     kProductPanel, sums + c, width, first_k > 0);
      }
      if (!is_last) continue;
      store_rounded(sums, width, rows, columns, call.bias == nullptr ? nullptr : call.bias + column, y, call.y_stride);
    }
  }
}

}  // namespace

void matrix_product(const MatrixProduct& call, std::atomic<int64_t>* next) {
  Scratch memory;
  const ProductScratch scratch{
      .panels = memory.take<uint16_t>(call.task_columns() * call.block_k),
      .rows = call.k % 2 == 1 ? memory.take<uint16_t>(call.block_rows * call.block_k) : nullptr,
      .sums = memory.take<float>((call.k <= call.block_k ? call.block_rows : call.task_rows) * call.task_columns())};
  for (int64_t task; (task = next->fetch_add(1)) < call.num_tasks();) {
    const int64_t first_row = task % call.num_row_runs() * call.task_rows;
    multiply_task(call, first_row, smaller(call.task_rows, call.m - first_row),
                  task / call.num_row_runs() * call.task_columns(), scratch);
  }
  release_tiles();
}

}  // namespace megalith::ops::cpu::CPU_CAPABILITY
