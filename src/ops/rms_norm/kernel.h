// Arguments of rms_norm's kernels: contiguous rows.
#pragma once

#include <cstdint>

#include "ops/cpu/capability.h"
#include "ops/dtype.h"

namespace megalith::ops {

struct RmsNormForward {
  Dtype dtype;  // of x, residual, weight, y and sum
  int64_t rows, columns;
  const void* x;
  const void* residual;  // null: no addition, and sum is not written
  const void* weight;
  double eps;
  void* y;
  void* sum;
  void* inv_rms;         // (rows) float, or double for kFloat64
  void* amax = nullptr;  // on a GPU: as one of inv_rms, raised to the largest |y|; null: not computed
};

// The weight's gradient is summed in row order within blocks, then over blocks in order, independently of the number of
// threads. Block i begins at row i * rows / blocks: a task on a CPU, a block of threads on a GPU.
inline constexpr int64_t kRmsNormBlocks = 64;
constexpr int64_t rms_norm_cpu_blocks(int64_t rows) { return rows < kRmsNormBlocks ? rows : kRmsNormBlocks; }
constexpr int64_t rms_norm_gpu_blocks(int64_t rows) { return rows < 4 * 512 ? (rows + 3) / 4 : 512; }

struct RmsNormBackward {
  Dtype dtype;
  int64_t rows, columns;
  const void* dy;
  const void* dsum;  // null: no other gradient of the sum
  const void* x;
  const void* weight;
  const void* inv_rms;
  void* dx;
  void* dweight;   // (columns) float or double
  void* scratch;   // (blocks, columns) float or double, written before it is read
  int64_t blocks;  // rms_norm_cpu_blocks(rows), rms_norm_gpu_blocks(rows)
};

namespace cpu {
MEGALITH_DECLARE_CPU_KERNEL(rms_norm_forward, (const RmsNormForward& a));
MEGALITH_DECLARE_CPU_KERNEL(rms_norm_backward, (const RmsNormBackward& a));
}  // namespace cpu

// Memory traffic of n = rows * columns elements of e bytes is minimal for 16-byte aligned rows of up to 16,384
// elements: 2 n e forward, 3 n e backward, 2 n e more each with a residual or n e with dsum. Other rows are read twice
// or more, from a cache if they fit.
namespace gpu {
void rms_norm_forward(const RmsNormForward& a, void* stream);
void rms_norm_backward(const RmsNormBackward& a, void* stream);
}  // namespace gpu

}  // namespace megalith::ops
