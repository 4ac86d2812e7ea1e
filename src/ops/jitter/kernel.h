// What the kernel of jitter is given: contiguous rows behind plain pointers. Free of torch's headers.
//
// Memory moves 2 elements (1 is read, 1 is written) for each element of x.
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

// Pointers on the device, and the stream as its native handle.
void jitter(const JitterCall& a, void* stream);

}  // namespace megalith::ops::gpu
