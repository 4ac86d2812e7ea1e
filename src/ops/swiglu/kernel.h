// The CPU kernels of swiglu: contiguous rows of [gate | up] behind plain pointers.
#pragma once

#include <cstdint>

#include "ops/cpu/capability.h"
#include "ops/dtype.h"

namespace megalith::ops::cpu {

struct Swiglu {
  Dtype dtype;
  int64_t rows, columns;  // columns of y; gate_up has twice as many
  const void* gate_up;
  void* y;
};

struct SwigluBackward {
  Dtype dtype;
  int64_t rows, columns;
  const void* dy;
  const void* gate_up;
  void* dgate_up;
};

MEGALITH_DECLARE_CPU_KERNEL(swiglu, (const Swiglu& a));
MEGALITH_DECLARE_CPU_KERNEL(swiglu_backward, (const SwigluBackward& a));

}  // namespace megalith::ops::cpu
