// Contiguous rows of [gate | up]. Moves 3 elements per element of y forward (2 read, 1 written), 5 backward (3 and 2).
#pragma once

#include <cstdint>

#include "ops/cpu/capability.h"
#include "ops/dtype.h"

namespace megalith::ops {

struct SwigluForward {
  Dtype dtype;
  int64_t rows, columns;  // y's columns; gate_up has twice as many
  const void* gate_up;
  void* y;
  void* amax = nullptr;  // on a GPU: wide, raised to the largest |y|; null: not computed
};

struct SwigluBackward {
  Dtype dtype;
  int64_t rows, columns;
  const void* dy;
  const void* gate_up;
  void* dgate_up;
};

namespace cpu {
MEGALITH_DECLARE_CPU_KERNEL(swiglu, (const SwigluForward& a));
MEGALITH_DECLARE_CPU_KERNEL(swiglu_backward, (const SwigluBackward& a));
}  // namespace cpu

namespace gpu {
void swiglu(const SwigluForward& a, void* stream);
void swiglu_backward(const SwigluBackward& a, void* stream);
}  // namespace gpu

}  // namespace megalith::ops
