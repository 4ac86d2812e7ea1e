// What a kernel of rms_norm is given, on any device: contiguous rows behind plain pointers. Free of torch's headers.
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
  void* amax = nullptr;  // on a GPU: as one of inv_rms, raised to the largest |y|; null: nobody asks
};

// The gradient of the weight is summed over blocks of rows, each in row order, then over the blocks in order: the
// result does not depend on how many threads there are. Block i begins with row i * rows / blocks. On a CPU a block is
// a task; on a GPU a block of threads: enough of them for a chip, each with some rows.
inline constexpr int64_t kRmsNormBlocks = 64;
constexpr int64_t rms_norm_cpu_blocks(int64_t rows) { return rows < kRmsNormBlocks ? rows : kRmsNormBlocks; }
constexpr int64_t rms_norm_gpu_blocks(int64_t rows) { return rows < 4 * 512 ? (rows + 3) / 4 : 512; }

struct RmsNormBackward {
  Dtype dtype;
  int64_t rows, columns;
  const void* dy;
  const void* dsum;  // null: nothing reached the sum by other ways
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

// Pointers on the device, and the stream as its native handle. With n = rows * columns elements of e bytes, the least
// that can be moved, and is, is 2 n e bytes forward (x, y) and 3 n e backward (dy, x, dx), 2 n e more each with a
// residual (it and sum) or n e (dsum); besides, for every row a statistic, and 8 * blocks * columns bytes of scratch,
// which a cache holds. This is so for rows of up to 16,384 elements that are aligned to 16 bytes; others are read twice
// or more, from a cache where they fit.
namespace gpu {
void rms_norm_forward(const RmsNormForward& a, void* stream);
void rms_norm_backward(const RmsNormBackward& a, void* stream);
}  // namespace gpu

}  // namespace megalith::ops
