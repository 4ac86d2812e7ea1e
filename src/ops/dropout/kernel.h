// What the kernel of dropout is given, on any device: contiguous rows behind plain pointers. Free of torch's headers.
//
// Memory moves 2 elements (1 is read, 1 is written) for each element of x.
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

// Pointers on the device, and the stream as its native handle.
namespace gpu {
void dropout(const DropoutCall& a, void* stream);
}  // namespace gpu

}  // namespace megalith::ops
