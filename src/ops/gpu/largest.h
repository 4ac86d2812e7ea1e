// A kernel's largest absolute value, combined in any order of blocks as an integer, which orders non-negative numbers
// alike.
#pragma once

#include <cstring>

#include "ops/gpu/block_sum.h"

namespace megalith::ops::gpu {

template <typename W>
struct Largest {
  W value = 0;

  // Clears the sign, of NaN and zero too.
  __device__ void take(W x) {
    const W magnitude = x != x ? W(__uint_as_float(0x7FC00000)) : x < 0 ? -x : x == 0 ? W(0) : x;
    value = Max{}(value, magnitude);
  }

  // Raises *amax (null: not computed) to the block's. All threads call it.
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
