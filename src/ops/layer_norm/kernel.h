// What a kernel of layer_norm is given, on any device: contiguous rows behind plain pointers. Free of torch's headers.
#pragma once

#include <cstdint>

#include "ops/cpu/capability.h"
#include "ops/dtype.h"

namespace megalith::ops {

struct LayerNormForward {
  Dtype dtype;  // of x, residual, weight, bias, y and sum
  int64_t rows, columns;
  const void* x;
  const void* residual;  // null: no addition, and sum is not written
  const void* weight;
  double weight_offset;  // added to the weight: 1 for a zero-centred one
  const void* bias;
  double eps;
  void* y;
  void* sum;
  void* mean;            // (rows) float, or double for kFloat64
  void* inv_std;         // (rows) as mean
  void* amax = nullptr;  // on a GPU: as one of mean, raised to the largest |y|; null: nobody asks
};

// The gradients of weight and bias are summed over blocks of rows, each in row order, then over the blocks in order:
// the result does not depend on how many threads there are. Block i begins with row i * rows / blocks. On a CPU a block
// is a task; on a GPU a block of threads: enough of them for a chip, each with some rows.
inline constexpr int64_t kLayerNormBlocks = 64;
constexpr int64_t layer_norm_cpu_blocks(int64_t rows) { return rows < kLayerNormBlocks ? rows : kLayerNormBlocks; }
constexpr int64_t layer_norm_gpu_blocks(int64_t rows) { return rows < 4 * 512 ? (rows + 3) / 4 : 512; }

struct LayerNormBackward {
  Dtype dtype;
  int64_t rows, columns;
  const void* dy;
  const void* dsum;  // null: nothing reached the sum by other ways
  const void* x;
  const void* weight;
  double weight_offset;
  const void* mean;
  const void* inv_std;
  void* dx;
  void* dweight;   // (columns) float or double
  void* dbias;     // (columns) as dweight
  void* scratch;   // (blocks, 2, columns) float or double, written before it is read: parts of dweight and of dbias
  int64_t blocks;  // layer_norm_cpu_blocks(rows), layer_norm_gpu_blocks(rows)
};

namespace cpu {
MEGALITH_DECLARE_CPU_KERNEL(layer_norm_forward, (const LayerNormForward& a));
MEGALITH_DECLARE_CPU_KERNEL(layer_norm_backward, (const LayerNormBackward& a));
}  // namespace cpu

// Pointers on the device, and the stream as its native handle. With n = rows * columns elements of e bytes, the least
// that can be moved, and is, is 2 n e bytes forward (x, y) and 3 n e backward (dy, x, dx), 2 n e more each with a
// residual (it and sum) or n e (dsum); besides, for every row two statistics, and 16 * blocks * columns bytes of
// scratch, which a cache holds. This is so for rows of up to 16,384 elements (8,192 backward) that are aligned to 16
// bytes; others are read twice or more, from a cache where they fit.
namespace gpu {
void layer_norm_forward(const LayerNormForward& a, void* stream);
void layer_norm_backward(const LayerNormBackward& a, void* stream);
}  // namespace gpu

}  // namespace megalith::ops
