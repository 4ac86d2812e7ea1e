// Contiguous rows.
#pragma once

#include <cstdint>

#include "ops/cpu/capability.h"
#include "ops/dtype.h"

namespace megalith::ops {

struct LayerNormForward {
  Dtype dtype;  // of all but statistics
  int64_t rows, columns;
  const void* x;
  const void* residual;  // null: no addition, no sum
  const void* weight;
  double weight_offset;  // 1 if zero-centred
  const void* bias;
  double eps;
  void* y;
  void* sum;
  void* mean;            // (rows) wide
  void* inv_std;         // (rows) wide
  void* amax = nullptr;  // on a GPU: wide, raised to the largest |y|; or null
};

// Summed in row order within blocks, then over blocks. Block i, a task on a CPU, begins at row i * rows / blocks.
inline constexpr int64_t kLayerNormBlocks = 64;
constexpr int64_t layer_norm_cpu_blocks(int64_t rows) { return rows < kLayerNormBlocks ? rows : kLayerNormBlocks; }
constexpr int64_t layer_norm_gpu_blocks(int64_t rows) { return rows < 4 * 512 ? (rows + 3) / 4 : 512; }

struct LayerNormBackward {
  Dtype dtype;
  int64_t rows, columns;
  const void* dy;
  const void* dsum;  // the sum's other gradient, or null
  const void* x;
  const void* weight;
  double weight_offset;
  const void* mean;
  const void* inv_std;
  void* dx;
  void* dweight;   // (columns) wide
  void* dbias;     // (columns) wide
  void* scratch;   // (blocks, 2, columns) wide: parts of dweight, dbias
  int64_t blocks;  // layer_norm_cpu_blocks(rows), layer_norm_gpu_blocks(rows)
};

namespace cpu {
MEGALITH_DECLARE_CPU_KERNEL(layer_norm_forward, (const LayerNormForward& a));
MEGALITH_DECLARE_CPU_KERNEL(layer_norm_backward, (const LayerNormBackward& a));
}  // namespace cpu

// Traffic for n = rows * columns elements of e bytes is minimal if rows are 16-byte aligned, of up to 16,384 elements
// (8,192 backward): 2 n e forward, 3 n e backward; with a residual 2 n e more each, with dsum n e. Others are read more
// often, from a cache if they fit.
namespace gpu {
void layer_norm_forward(const LayerNormForward& a, void* stream);
void layer_norm_backward(const LayerNormBackward& a, void* stream);
}  // namespace gpu

}  // namespace megalith::ops
