// Contiguous rows. Moves 2 elements per element of y (1 read, 1 written), backward 3 (2 and 1); gated 3 (2 and 1),
// backward 5 (3 and 2).
#pragma once

#include <cstdint>

#include "ops/cpu/capability.h"
#include "ops/dtype.h"
#include "ops/gelu/form.h"

namespace megalith::ops {

// y = activation(x + bias)
struct BiasActivation {
  Dtype dtype;
  int64_t rows, columns;
  const void* x;
  const void* bias;  // or null
  void* y;
};

// dx = dy * activation'(x + bias)
struct BiasActivationBackward {
  Dtype dtype;
  int64_t rows, columns;
  const void* dy;
  const void* x;
  const void* bias;
  void* dx;
};

struct BiasGelu {
  BiasActivation call;
  GeluForm form;
};

struct BiasGeluBackward {
  BiasActivationBackward call;
  GeluForm form;
};

struct GegluForward {
  Dtype dtype;
  GeluForm form;
  int64_t rows, columns;  // of y; gate_up has 2 * columns
  const void* gate_up;
  void* y;
};

struct GegluBackward {
  Dtype dtype;
  GeluForm form;
  int64_t rows, columns;
  const void* dy;
  const void* gate_up;
  void* dgate_up;
};

namespace cpu {
MEGALITH_DECLARE_CPU_KERNEL(bias_gelu, (const BiasGelu& a));
MEGALITH_DECLARE_CPU_KERNEL(bias_gelu_backward, (const BiasGeluBackward& a));
MEGALITH_DECLARE_CPU_KERNEL(geglu, (const GegluForward& a));
MEGALITH_DECLARE_CPU_KERNEL(geglu_backward, (const GegluBackward& a));
MEGALITH_DECLARE_CPU_KERNEL(bias_squared_relu, (const BiasActivation& a));
MEGALITH_DECLARE_CPU_KERNEL(bias_squared_relu_backward, (const BiasActivationBackward& a));
}  // namespace cpu

namespace gpu {
void bias_gelu(const BiasGelu& a, void* stream);
void bias_gelu_backward(const BiasGeluBackward& a, void* stream);
void geglu(const GegluForward& a, void* stream);
void geglu_backward(const GegluBackward& a, void* stream);
void bias_squared_relu(const BiasActivation& a, void* stream);
void bias_squared_relu_backward(const BiasActivationBackward& a, void* stream);
}  // namespace gpu

}  // namespace megalith::ops
