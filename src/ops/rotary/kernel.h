// Arguments of rotary's kernel, forward and backward. Moves 2 elements (1 read, 1 written) per element of x, and the
// angles, which heads share.
#pragma once

#include <cstdint>

#include "ops/cpu/capability.h"
#include "ops/dtype.h"

namespace megalith::ops {

// In elements; channels are contiguous.
struct HeadStrides {
  int64_t batch, sequence, head;
};

struct RotaryTurn {
  Dtype dtype;
  int64_t batch, sequence, heads, channels;
  int64_t half;  // r / 2, angles per position
  const void* x;
  HeadStrides x_strides;
  const void* cos;  // (batch or 1, sequence, half) contiguous, wide
  const void* sin;
  int64_t angle_batch_stride;  // for cos and sin; 0: shared by the batch
  bool is_interleaved;
  bool turns_back;  // negative angles
  void* y;
  HeadStrides y_strides;
};

namespace cpu {
MEGALITH_DECLARE_CPU_KERNEL(rotary, (const RotaryTurn& a));
}  // namespace cpu

namespace gpu {
void rotary(const RotaryTurn& a, void* stream);
}  // namespace gpu

}  // namespace megalith::ops
