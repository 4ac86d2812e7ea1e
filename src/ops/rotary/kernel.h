// The CPU kernel of rotary, forward and backward.
#pragma once

#include <cstdint>

#include "ops/cpu/capability.h"
#include "ops/dtype.h"

namespace megalith::ops::cpu {

struct Rotary {
  Dtype dtype;
  int64_t batch, sequence, heads, channels;
  int64_t half;  // r / 2: angles of a position
  const void* x;
  int64_t batch_stride, sequence_stride, head_stride;  // of x, in elements
  const void* cos;                                     // (batch or 1, sequence, half) contiguous float or double
  const void* sin;
  int64_t angle_batch_stride;  // of cos and sin; 0 when the batch shares them
  bool is_interleaved;
  bool turns_back;  // negative angles
  void* y;          // contiguous
};

MEGALITH_DECLARE_CPU_KERNEL(rotary, (const Rotary& a));

}  // namespace megalith::ops::cpu
