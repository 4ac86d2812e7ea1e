// Contiguous rows.
#pragma once

#include <cstdint>

#include "ops/cpu/capability.h"
#include "ops/dtype.h"

namespace megalith::ops {

struct RmsNormForward {
  Dtype dtype;  // x's, residual's, weight's, y's and sum's
  int64_t rows, columns;
  const void* x;
  const void* residual;  // null: no addition; sum is not written
  const void* weight;
  double eps;
  void* y;
  void* sum;
  void* inv_rms;         // (rows) wide
  void* amax = nullptr;  // on a GPU: wide, raised to the largest |y|; null: not computed
};

// The weight's gradient is summed in row order within blocks, then over blocks in order, whatever the number of
// threads. Block i, a task on a CPU, begins at row i * rows / blocks.
inline constexpr int64_t kRmsNormBlocks = 64;
constexpr int64_t rms_norm_cpu_blocks(int64_t rows) { return rows < kRmsNormBlocks ? rows : kRmsNormBlocks; }
constexpr int64_t rms_norm_gpu_blocks(int64_t rows) { return rows < 4 * 512 ? (rows + 3) / 4 : 512; }

struct RmsNormBackward {
  Dtype dtype;
  int64_t rows, columns;
  const void* dy;
  const void* dsum;  // null: none
  const void* x;
  const void* weight;
  const void* inv_rms;
  void* dx;
  void* dweight;   // (columns) wide
  void* scratch;   // (blocks, columns) wide
  int64_t blocks;  // rms_norm_cpu_blocks(rows), rms_norm_gpu_blocks(rows)
};

namespace cpu {
MEGALITH_DECLARE_CPU_KERNEL(rms_norm_forward, (const RmsNormForward& a));
MEGALITH_DECLARE_CPU_KERNEL(rms_norm_backward, (const RmsNormBackward& a));
}  // namespace cpu

// Traffic for n = rows * columns elements of e bytes is minimal if rows are 16-byte aligned, of up to 16,384 elements:
// 2 n e forward, 3 n e backward; with a residual 2 n e more each, with dsum n e. Others are read more often, from a
// cache if they fit.
namespace gpu {
void rms_norm_forward(const RmsNormForward& a, void* stream);
void rms_norm_backward(const RmsNormBackward& a, void* stream);
}  // namespace gpu

}  // namespace megalith::ops
