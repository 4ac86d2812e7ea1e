// What the kernel of bf16 products gets: y = a b^T (+ bias) or y = a b, cut into tasks that share nothing.
//
// A task is a group of panels (64 columns of y) times a run of rows. It packs its panels of b into pairs of rows, block
// of k by block, multiplies its rows with them in fp32 and rounds once, on the way out. Only block_k changes results,
// and that follows from k alone: they repeat to the bit for any number of threads.
#pragma once

#include <atomic>
#include <cstdint>

#include "ops/cpu/capability.h"

namespace megalith::ops::cpu {

inline constexpr int64_t kProductPanel = 64;
struct MatrixProduct {
  int64_t m, n, k;
  const uint16_t* a;  // (m, k) bf16
  int64_t a_stride;
  const uint16_t* b;  // (n, k) bf16 where b is transposed, else (k, n)
  int64_t b_stride;
  bool b_is_transposed;
  const uint16_t* bias;  // (n) bf16, or null
  uint16_t* y;           // (m, n) bf16
  int64_t y_stride;
  int64_t block_rows, block_k;     // of one call of tile_product; block_k is even
  int64_t task_rows, task_panels;  // task_rows is a multiple of block_rows

  int64_t task_columns() const { return task_panels * kProductPanel; }
  int64_t num_row_runs() const { return (m + task_rows - 1) / task_rows; }
  int64_t num_tasks() const { return num_row_runs() * ((n + task_columns() - 1) / task_columns()); }
};
// Takes tasks from the counter until none is left; one call a thread.
MEGALITH_DECLARE_CPU_KERNEL(matrix_product, (const MatrixProduct& call, std::atomic<int64_t>* next));

}  // namespace megalith::ops::cpu
