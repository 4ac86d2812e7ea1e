// The largest absolute value of what a kernel writes or reads. It is combined as an integer, whose order is that of
// numbers that are not negative, so no order of blocks shows in it. Only gpu.cu files include it.
#pragma once

#include <cstring>

#include "ops/gpu/block_sum.h"

namespace megalith::ops::gpu {

// A thread's own.
template <typename W>
struct Largest {
  W value = 0;

  // The sign goes, of a NaN and of zero too.
  __device__ void take(W x) {
    const W magnitude = x != x ? W(__uint_as_float(0x7FC00000)) : x < 0 ? -x : x == 0 ? W(0) : x;
    value = Max{}(value, magnitude);
  }

  // amax (one W, or null: nobody asks) becomes at least that of the block. All threads of the block call it.
  __device__ void raise(void* amax) const {
    if (amax == nullptr) return;
    using Bits = std::conditional_t<sizeof(W) == 8, unsigned long long, unsigned>;
    const W of_block = max_over_block(value);
    if (threadIdx.x != 0) return;
    Bits bits;
    memcpy(&bits, &of_block, sizeof(W));
    atomicMax(static_cast<Bits*>(amax), bits);
  }
};

}  // namespace megalith::ops::gpu
