// Contiguous rows. Moves 2 elements per element (1 read, 1 written).
#pragma once

#include <cstdint>

#include "ops/cpu/capability.h"
#include "ops/dtype.h"

namespace megalith::ops {

struct DropoutCall {
  Dtype dtype;
  int64_t rows, columns;
  const void* x;
  const int64_t* row_ids;
  int64_t column_start;
  double p;
  uint64_t key;
  void* y;
};

namespace cpu {
MEGALITH_DECLARE_CPU_KERNEL(dropout, (const DropoutCall& a));
}  // namespace cpu

namespace gpu {
void dropout(const DropoutCall& a, void* stream);
}  // namespace gpu

}  // namespace megalith::ops
