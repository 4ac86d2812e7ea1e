// Contiguous rows. Moves 2 elements per element (1 read, 1 written).
#pragma once

#include <cstdint>

#include "ops/dtype.h"

namespace megalith::ops::gpu {

struct JitterCall {
  Dtype dtype;
  int64_t rows, columns;
  const void* x;
  const int64_t* row_ids;
  double eps;
  uint64_t key;
  void* y;
};

void jitter(const JitterCall& a, void* stream);

}  // namespace megalith::ops::gpu
