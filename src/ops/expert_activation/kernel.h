// The CPU kernels of expert_activation: contiguous rows behind plain pointers.
#pragma once

#include <cstdint>

#include "ops/cpu/capability.h"
#include "ops/dtype.h"
#include "ops/expert_activation/kind.h"

namespace megalith::ops::cpu {

struct ExpertActivationCall {
  Dtype dtype;
  ActivationKind kind;
  bool is_gated;
  int64_t rows, columns;  // columns of y; a gated x has twice as many
  const void* x;
  const void* weights;  // (rows) wide, or null
  void* y;              // forward alone
  const void* dy;       // the rest backward alone
  void* dx;
  void* dweights;  // wide; null without weights
};

MEGALITH_DECLARE_CPU_KERNEL(expert_activation, (const ExpertActivationCall& a));
MEGALITH_DECLARE_CPU_KERNEL(expert_activation_backward, (const ExpertActivationCall& a));

}  // namespace megalith::ops::cpu
