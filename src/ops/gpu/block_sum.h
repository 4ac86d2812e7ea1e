// Sums over a block of threads, through shared memory. Only .cu files include it.
#pragma once

#include "ops/gpu/vendor.h"

namespace megalith::ops::gpu {

// The sum of `value` over a block of kThreads (a power of two), in one fixed order, known to all its threads.
template <int kThreads, typename W>
__device__ W sum_over_block(W value) {
  __shared__ W sums[kThreads];
  __syncthreads();  // a former sum may still be read
  sums[threadIdx.x] = value;
  __syncthreads();
  for (int width = kThreads / 2; width > 0; width /= 2) {
    if (static_cast<int>(threadIdx.x) < width) sums[threadIdx.x] += sums[threadIdx.x + width];
    __syncthreads();
  }
  return sums[0];
}

}  // namespace megalith::ops::gpu
