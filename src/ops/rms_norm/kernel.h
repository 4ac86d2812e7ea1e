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
  void* inv_rms;  // (rows) float, or double for kFloat64
};

// The gradient of the weight is summed over at most this many blocks of rows, each in row order, then over the blocks
// in order: the result does not depend on how many threads there are. Block i begins with row i * rows / blocks.
inline constexpr int64_t kRmsNormBlocks = 64;

// On a GPU a block of rows is a block of threads: enough for every processor of a chip, each with some rows to work on.
inline constexpr int64_t rms_norm_gpu_blocks(int64_t rows) { return rows < kRmsNormBlocks ? rows : kRmsNormBlocks; }

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
  int64_t blocks;  // min(rows, kRmsNormBlocks)
};

namespace cpu {
MEGALITH_DECLARE_CPU_KERNEL(rms_norm_forward, (const RmsNormForward& a));
MEGALITH_DECLARE_CPU_KERNEL(rms_norm_backward, (const RmsNormBackward& a));
}  // namespace cpu

// Pointers on the device, and the stream as its native handle.
namespace gpu {
void rms_norm_forward(const RmsNormForward& a, void* stream);
void rms_norm_backward(const RmsNormBackward& a, void* stream);
}  // namespace gpu

}  // namespace megalith::ops
