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
  void* mean;     // (rows) float, or double for kFloat64
  void* inv_std;  // (rows) as mean
};

// The gradients of weight and bias are summed over at most this many blocks of rows, each in row order, then over the
// blocks in order: the result does not depend on how many threads there are. Block i begins with row i * rows / blocks.
inline constexpr int64_t kLayerNormBlocks = 64;

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
  int64_t blocks;  // min(rows, kLayerNormBlocks)
};

namespace cpu {
MEGALITH_DECLARE_CPU_KERNEL(layer_norm_forward, (const LayerNormForward& a));
MEGALITH_DECLARE_CPU_KERNEL(layer_norm_backward, (const LayerNormBackward& a));
}  // namespace cpu

// Pointers on the device, and the stream as its native handle.
namespace gpu {
void layer_norm_forward(const LayerNormForward& a, void* stream);
void layer_norm_backward(const LayerNormBackward& a, void* stream);
}  // namespace gpu

}  // namespace megalith::ops
