// Contiguous rows. Moves 2 elements per element of y (1 read, 1 written), backward 3 (2 and 1); gated 3 (2 and 1),
// backward 5 (3 and 2).
#pragma once

#include <cstdint>

#include "ops/cpu/capability.h"
#include "ops/dtype.h"
#include "ops/expert_activation/kind.h"

namespace megalith::ops {

struct ExpertActivationCall {
  Dtype dtype;
  ActivationKind kind;
  bool is_gated;
  int64_t rows, columns;  // of y; a gated x has 2 * columns
  const void* x;
  const void* weights;  // (rows) wide, or null
  void* y;              // forward only
  const void* dy;       // from here on backward only
  void* dx;
  void* dweights;  // wide; null without weights
};

namespace cpu {
MEGALITH_DECLARE_CPU_KERNEL(expert_activation, (const ExpertActivationCall& a));
MEGALITH_DECLARE_CPU_KERNEL(expert_activation_backward, (const ExpertActivationCall& a));
}  // namespace cpu

namespace gpu {
void expert_activation(const ExpertActivationCall& a, void* stream);
void expert_activation_backward(const ExpertActivationCall& a, void* stream);
}  // namespace gpu

}  // namespace megalith::ops
