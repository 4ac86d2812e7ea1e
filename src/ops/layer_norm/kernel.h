// Arguments of layer_norm's kernels: contiguous rows.
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
  double weight_offset;  // added to the weight: 1 if zero-centred
  const void* bias;
  double eps;
  void* y;
  void* sum;
  void* mean;            // (rows) float, or double for kFloat64
  void* inv_std;         // (rows) as mean
  void* amax = nullptr;  // on a GPU: as one of mean, raised to the largest |y|; null: not computed
};

// Gradients of weight and bias are summed in row order within blocks, then over blocks in order, independently of the
// number of threads. Block i begins at row i * rows / blocks: a task on a CPU, a block of threads on a GPU.
inline constexpr int64_t kLayerNormBlocks = 64;
constexpr int64_t layer_norm_cpu_blocks(int64_t rows) { return rows < kLayerNormBlocks ? rows : kLayerNormBlocks; }
constexpr int64_t layer_norm_gpu_blocks(int64_t rows) { return rows < 4 * 512 ? (rows + 3) / 4 : 512; }

struct LayerNormBackward {
  Dtype dtype;
  int64_t rows, columns;
  const void* dy;
  const void* dsum;  // null: no other gradient of the sum
  const void* x;
  const void* weight;
  double weight_offset;
  const void* mean;
  const void* inv_std;
  void* dx;
  void* dweight;   // (columns) float or double
  void* dbias;     // (columns)
  void* scratch;   // (blocks, 2, columns) float or double, written before it is read: parts of dweight and of dbias
  int64_t blocks;  // layer_norm_cpu_blocks(rows), layer_norm_gpu_blocks(rows)
};

namespace cpu {
MEGALITH_DECLARE_CPU_KERNEL(layer_norm_forward, (const LayerNormForward& a));
MEGALITH_DECLARE_CPU_KERNEL(layer_norm_backward, (const LayerNormBackward& a));
}  // namespace cpu

// Memory traffic of n = rows * columns elements of e bytes is minimal for 16-byte aligned rows of up to 16,384 elements
// (8,192 backward): 2 n e forward, 3 n e backward, 2 n e more each with a residual or n e with dsum. Other rows are
// read twice or more, from a cache if they fit.
namespace gpu {
void layer_norm_forward(const LayerNormForward& a, void* stream);
void layer_norm_backward(const LayerNormBackward& a, void* stream);
}  // namespace gpu

}  // namespace megalith::ops
