// CPU kernels of the linear layer and the embedding.
#pragma once

#include <atomic>
#include <cstdint>

#include "ops/cpu/capability.h"
#include "ops/dtype.h"

namespace megalith::ops::cpu {

// dw (o, h) fp32 (+)= dy^T x for bf16 dy (t, o) and x (t, h), t at most kWgradTokens, in blocks of `block_rows` rows by
// `block_panels` panels of 64 columns, which change no result.
inline constexpr int64_t kWgradTokens = 2048;  // rows of dy^T: 4 KB; 256 are half of a 2 MB L2
inline constexpr int64_t kWgradPanel = 64;
struct WgradCall {
  int64_t t, o, h;
  const uint16_t* dy;
  int64_t dy_stride;
  const uint16_t* x;
  int64_t x_stride;
  float* dw;
  int64_t dw_stride;
  bool accumulate;
  int64_t block_rows, block_panels;
  uint16_t* packed_x;  // (panels, t_padded / 2, 64, 2)

  int64_t t_padded() const { return (t + 31) / 32 * 32; }
  int64_t num_panels() const { return (h + kWgradPanel - 1) / kWgradPanel; }
  int64_t num_row_blocks() const { return (o + block_rows - 1) / block_rows; }
  int64_t num_panel_blocks() const { return (num_panels() + block_panels - 1) / block_panels; }
};
// Each thread takes tasks (panels; blocks of dw) from the counter.
MEGALITH_DECLARE_CPU_KERNEL(wgrad_pack, (const WgradCall& call, std::atomic<int64_t>* next));
MEGALITH_DECLARE_CPU_KERNEL(wgrad, (const WgradCall& call, std::atomic<int64_t>* next));

// db (columns) wide += sum over rows of dy (rows, columns).
struct ColumnSum {
  Dtype dtype;
  int64_t rows, columns, stride;
  const void* dy;
  void* db;
};
MEGALITH_DECLARE_CPU_KERNEL(column_sum, (const ColumnSum& a));

// dw[rows[s]] += dy[tokens[i]] for i in [starts[s], starts[s + 1]), in order; rows are distinct.
struct ScatterAdd {
  Dtype dtype;
  int64_t num_segments, columns;
  const int64_t *rows, *starts, *tokens;
  const void* dy;
  int64_t dy_stride;
  void* dw;
  int64_t dw_stride;
};
MEGALITH_DECLARE_CPU_KERNEL(scatter_add, (const ScatterAdd& a));

// y = a b^T (+ bias) or y = a b in bf16, in independent tasks: a group of panels (64 columns of y) times a run of rows.
// A task packs its panels of b into pairs of rows, block of k by block, multiplies in fp32 and rounds once. Only
// block_k changes results, and depends only on k.
inline constexpr int64_t kProductPanel = 64;
struct MatrixProduct {
  int64_t m, n, k;
  const uint16_t* a;  // (m, k)
  int64_t a_stride;
  const uint16_t* b;  // (n, k) if transposed, else (k, n)
  int64_t b_stride;
  bool b_is_transposed;
  const uint16_t* bias;  // (n), or null
  uint16_t* y;           // (m, n)
  int64_t y_stride;
  int64_t block_rows, block_k;     // per call of tile_product; block_k is even
  int64_t task_rows, task_panels;  // a multiple of block_rows

  int64_t task_columns() const { return task_panels * kProductPanel; }
  int64_t num_row_runs() const { return (m + task_rows - 1) / task_rows; }
  int64_t num_tasks() const { return num_row_runs() * ((n + task_columns() - 1) / task_columns()); }
};
// As above.
MEGALITH_DECLARE_CPU_KERNEL(matrix_product, (const MatrixProduct& call, std::atomic<int64_t>* next));

// y = x w^T (+ bias) of a few rows in bf16 or fp16, summed in fp32 and rounded once. No row changes another's bits.
struct FewRowsProduct {
  static constexpr int64_t kMostRows = 16;
  static constexpr int64_t kTaskColumns = 48;  // whole blocks of the kernel's
  Dtype dtype;
  bool has_pairs;   // the processor has AVX512_BF16
  int64_t m, n, k;  // m is at most kMostRows
  const void* x;    // (m, k)
  int64_t x_stride;
  const void* w;  // (n, k)
  int64_t w_stride;
  const void* bias;  // (n), or null
  void* y;           // (m, n)
  int64_t y_stride;

  int64_t num_tasks() const { return (n + kTaskColumns - 1) / kTaskColumns; }
};
// As above.
MEGALITH_DECLARE_CPU_KERNEL(few_rows_product, (const FewRowsProduct& call, std::atomic<int64_t>* next));

// c = a b (+ bias), or c += a b, in fp32 and in tasks of task_rows x task_columns. Sums over a block of k start from 0
// and are added in order: only block_k changes results, and depends only on k.
struct FloatProduct {
  static constexpr int64_t kMostBlockK = 256;
  int64_t m, n, k;
  const float* a;  // (m, k), or (k, m) if transposed
  int64_t a_stride;
  bool a_is_transposed;
  const float* b;  // (k, n), or (n, k) if transposed
  int64_t b_stride;
  bool b_is_transposed;
  float* c;  // (m, n)
  int64_t c_stride;
  bool accumulate;
  const float* bias;  // (n), or null; not if accumulate
  int64_t block_k, task_rows, task_columns;

  int64_t num_row_runs() const { return (m + task_rows - 1) / task_rows; }
  int64_t num_tasks() const { return num_row_runs() * ((n + task_columns - 1) / task_columns); }
};
// As above.
MEGALITH_DECLARE_CPU_KERNEL(float_product_tasks, (const FloatProduct& call, std::atomic<int64_t>* next));

}  // namespace megalith::ops::cpu
