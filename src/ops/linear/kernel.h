// What the kernels of the linear layer's gradients and of the embedding's get.
#pragma once

#include <atomic>
#include <cstdint>

#include "ops/cpu/capability.h"
#include "ops/dtype.h"

namespace megalith::ops::cpu {

// dw (o, h) fp32 (+)= dy^T x for bf16 dy (t, o) and x (t, h), t at most kWgradTokens, in blocks of dw: `block_rows`
// rows by `block_panels` panels of 64 columns. How dw is cut changes no result: an element is summed over t in one
// order.
inline constexpr int64_t kWgradTokens = 2048;  // rows of dy^T: 4 KB; a block of 256 of them is half of a 2 MB L2
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
  uint16_t* packed_x;  // panels of 64 columns, each (t_padded / 2, 64, 2)

  int64_t t_padded() const { return (t + 31) / 32 * 32; }
  int64_t num_panels() const { return (h + kWgradPanel - 1) / kWgradPanel; }
  int64_t num_row_blocks() const { return (o + block_rows - 1) / block_rows; }
  int64_t num_panel_blocks() const { return (num_panels() + block_panels - 1) / block_panels; }
};
// Each takes tasks from the counter until none is left; one call a thread. Tasks: panels; blocks of dw.
MEGALITH_DECLARE_CPU_KERNEL(wgrad_pack, (const WgradCall& call, std::atomic<int64_t>* next));
MEGALITH_DECLARE_CPU_KERNEL(wgrad, (const WgradCall& call, std::atomic<int64_t>* next));

// db (columns) += sum over rows of dy (rows, columns), wide.
struct ColumnSum {
  Dtype dtype;
  int64_t rows, columns, stride;
  const void* dy;
  void* db;
};
MEGALITH_DECLARE_CPU_KERNEL(column_sum, (const ColumnSum& a));

// dw[rows[s]] += dy[tokens[i]] for i in [starts[s], starts[s + 1]), in that order; the rows differ from one another.
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

}  // namespace megalith::ops::cpu
