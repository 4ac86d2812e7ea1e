// Sums and maxima over a wave's lanes and a block's threads, in fixed order. Waves exchange values through a row of
// shared memory, between two barriers.
#pragma once

#include "ops/gpu/compiler.h"

namespace megalith::ops::gpu {

struct Sum {
  template <typename W>
  __device__ W operator()(W a, W b) const {
    return a + b;
  }
};
struct Max {
  template <typename W>
  __device__ W operator()(W a, W b) const {
    return a < b || b != b ? b : a;  // NaN stays
  }
};

// Over neighbouring `lanes`, a power of two; all get the result. Whole waves call it.
template <typename Combine, typename W>
__device__ W combine_lanes(Combine combine, W value, int lanes) {
  for (int mask = lanes / 2; mask > 0; mask /= 2) value = combine(value, shuffle_xor(value, mask));
  return value;
}

// Each of kCount values over the block; all threads call it and get the results.
template <typename Combine, int kCount, typename W>
__device__ void combine_block(Combine combine, W (&values)[kCount]) {
  MEGALITH_SHARED(W, of_waves, kCount * kMostWaves);
  MEGALITH_UNROLL
  for (int i = 0; i < kCount; ++i) values[i] = combine_lanes(combine, values[i], wave_size());
  const int waves = static_cast<int>(blockDim.x) / wave_size();
  if (waves == 1) return;
  __syncthreads();  // the last call's results may still be read
  if (lane() == 0) {
    MEGALITH_UNROLL
    for (int i = 0; i < kCount; ++i) of_waves[i * kMostWaves + wave()] = values[i];
  }
  __syncthreads();
  MEGALITH_UNROLL
  for (int i = 0; i < kCount; ++i) {
    values[i] = of_waves[i * kMostWaves];
    for (int w = 1; w < waves; ++w) values[i] = combine(values[i], of_waves[i * kMostWaves + w]);
  }
}

template <typename W>
__device__ W sum_over_block(W value) {
  W values[] = {value};
  combine_block(Sum{}, values);
  return values[0];
}
template <typename W>
__device__ W max_over_block(W value) {
  W values[] = {value};
  combine_block(Max{}, values);
  return values[0];
}

}  // namespace megalith::ops::gpu
