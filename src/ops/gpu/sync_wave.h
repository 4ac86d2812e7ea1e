// A barrier for the lanes of a wave and what they wrote to shared memory; whole waves call it.
#pragma once

#include "ops/gpu/compiler.h"

namespace megalith::ops::gpu {

__device__ inline void sync_wave() {
#if defined(MEGALITH_GPU_EMULATION)
  vote(true);
#elif defined(__HIPCC__)
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
  __builtin_amdgcn_wave_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
#else
  __syncwarp();
#endif
}

}  // namespace megalith::ops::gpu
