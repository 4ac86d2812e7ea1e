// The CPU kernel of dropout: contiguous rows behind plain pointers.
#pragma once

#include <cstdint>

#include "ops/cpu/capability.h"
#include "ops/dtype.h"

namespace megalith::ops::cpu {

struct Dropout {
  Dtype dtype;
  int64_t rows, columns;
  const void* x;
  const int64_t* row_ids;
  int64_t column_start;
  double p;
  uint64_t key;
  void* y;
};

MEGALITH_DECLARE_CPU_KERNEL(dropout, (const Dropout& a));

}  // namespace megalith::ops::cpu
