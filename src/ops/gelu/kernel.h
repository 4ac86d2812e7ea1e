// The CPU kernels of the GELU operators: contiguous rows behind plain pointers.
#pragma once

#include <cstdint>

#include "ops/cpu/capability.h"
#include "ops/dtype.h"
#include "ops/gelu/form.h"

namespace megalith::ops::cpu {

// y = activation(x + bias)
struct BiasActivation {
  Dtype dtype;
  int64_t rows, columns;
  const void* x;
  const void* bias;  // null: none
  void* y;
};

// dx = dy * activation'(x + bias)
struct BiasActivationBackward {
  Dtype dtype;
  int64_t rows, columns;
  const void* dy;
  const void* x;
  const void* bias;  // null: none
  void* dx;
};

struct Geglu {
  Dtype dtype;
  int64_t rows, columns;  // columns of y; gate_up has twice as many
  const void* gate_up;
  void* y;
};

struct GegluBackward {
  Dtype dtype;
  int64_t rows, columns;
  const void* dy;
  const void* gate_up;
  void* dgate_up;
};

MEGALITH_DECLARE_CPU_KERNEL(bias_gelu, (const BiasActivation& a, GeluForm form));
MEGALITH_DECLARE_CPU_KERNEL(bias_gelu_backward, (const BiasActivationBackward& a, GeluForm form));
MEGALITH_DECLARE_CPU_KERNEL(geglu, (const Geglu& a, GeluForm form));
MEGALITH_DECLARE_CPU_KERNEL(geglu_backward, (const GegluBackward& a, GeluForm form));
MEGALITH_DECLARE_CPU_KERNEL(bias_squared_relu, (const BiasActivation& a));
MEGALITH_DECLARE_CPU_KERNEL(bias_squared_relu_backward, (const BiasActivationBackward& a));

}  // namespace megalith::ops::cpu
