// Contiguous rows. Moves 2 elements per element of y (1 read, 1 written), backward 3 (2 and 1); gated 3 (2 and 1),
// backward 5 (3 and 2).
#pragma once

#include <cstdint>

#include "ops/cpu/capability.h"
#include "ops/dtype.h"
#include "ops/expert_activation/kind.h"

namespace megalith::ops {

struct ActivationCall {
  Dtype dtype;
  ActivationKind kind;
  bool is_gated;
  int64_t rows, columns;  // of y; a gated x has 2 * columns
  const void* x;
  void* y;         // forward only
  const void* dy;  // from here on backward only
  void* dx;
};

namespace cpu {
MEGALITH_DECLARE_CPU_KERNEL(activation, (const ActivationCall& a));
MEGALITH_DECLARE_CPU_KERNEL(activation_backward, (const ActivationCall& a));
}  // namespace cpu

namespace gpu {
void activation(const ActivationCall& a, void* stream);
void activation_backward(const ActivationCall& a, void* stream);
}  // namespace gpu

}  // namespace megalith::ops
