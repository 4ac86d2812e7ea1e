// Sums over the lanes of several registers. Every register is added in the same order, whatever its place.
#pragma once

#include "ops/cpu/lanes.h"

namespace megalith::ops::cpu::CPU_CAPABILITY {

inline constexpr int64_t kFloatLanes = Lanes<float>::size();

// out[i] = the sum of x[i], i < kFloatLanes
inline void lane_sums(const Lanes<float>* x, float* out) {
#if defined(CPU_CAPABILITY_AVX512)
  __m512 fours[4];
  for (int i = 0; i < 4; ++i) {
    const __m512 a = x[4 * i], b = x[4 * i + 1], c = x[4 * i + 2], d = x[4 * i + 3];
    const __m512d ab = _mm512_castps_pd(_mm512_unpacklo_ps(a, b) + _mm512_unpackhi_ps(a, b));
    const __m512d cd = _mm512_castps_pd(_mm512_unpacklo_ps(c, d) + _mm512_unpackhi_ps(c, d));
    fours[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd)) + _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd));
  }
  const auto halves = [](__m512 a, __m512 b) {
    return _mm512_shuffle_f32x4(a, b, 0x88) + _mm512_shuffle_f32x4(a, b, 0xdd);
  };
  _mm512_storeu_ps(out, halves(halves(fours[0], fours[1]), halves(fours[2], fours[3])));
#elif defined(CPU_CAPABILITY_AVX2)
  __m256 fours[2];
  for (int i = 0; i < 2; ++i) {
    fours[i] = _mm256_hadd_ps(_mm256_hadd_ps(x[4 * i], x[4 * i + 1]), _mm256_hadd_ps(x[4 * i + 2], x[4 * i + 3]));
  }
  _mm256_storeu_ps(out, _mm256_permute2f128_ps(fours[0], fours[1], 0x20) +
                            _mm256_permute2f128_ps(fours[0], fours[1], 0x31));
#else
  for (int64_t i = 0; i < kFloatLanes; ++i) out[i] = sum_of(x[i]);
#endif
}

}  // namespace megalith::ops::cpu::CPU_CAPABILITY
