// Rounding to eight bits: by the chip's instruction where it has one for the format (NVIDIA from sm_89: OCP's; gfx94:
// fnuz; gfx95: OCP's), else by integers. All give the same codes; instructions only for numbers that are not NaN, whose
// sign they lose.
#pragma once

#include "ops/fp8_cast/kernel.h"
#include "ops/gpu/compiler.h"

#if defined(MEGALITH_GPU_EMULATION)
#include <gpu_kernels/emulation/conversion.h>
#endif

namespace megalith::ops::gpu {

#if defined(MEGALITH_GPU_EMULATION)

template <bool kIsFnuz>
bool has_conversion() {
  return gpu_emulation::has_conversion(kIsFnuz);
}
inline uint32_t convert_pair(const EightBitsLayout& layout, float low, float high) {
  return gpu_emulation::convert_pair(layout.mantissa_bits, layout.largest, low, high);
}

#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890

template <bool kIsFnuz>
__device__ constexpr bool has_conversion() {
  return !kIsFnuz;
}
// Saturates.
__device__ inline uint32_t convert_pair(const EightBitsLayout& layout, float low, float high) {
  uint16_t codes;
  if (layout.mantissa_bits == 3) {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
  }
  return codes;
}

#elif defined(__gfx940__) || defined(__gfx941__) || defined(__gfx942__) || defined(__gfx950__)

template <bool kIsFnuz>
__device__ constexpr bool has_conversion() {
#if defined(__gfx950__)
  return !kIsFnuz;
#else
  return kIsFnuz;
#endif
}
// The instruction makes NaN or infinity of what is too large.
__device__ inline uint32_t convert_pair(const EightBitsLayout& layout, float low, float high) {
  low = __builtin_amdgcn_fmed3f(low, layout.largest, -layout.largest);
  high = __builtin_amdgcn_fmed3f(high, layout.largest, -layout.largest);
  const int codes = layout.mantissa_bits == 3 ? __builtin_amdgcn_cvt_pk_fp8_f32(low, high, 0, false)
                                              : __builtin_amdgcn_cvt_pk_bf8_f32(low, high, 0, false);
  return static_cast<uint32_t>(codes) & 0xFFFF;
}

#else

template <bool kIsFnuz>
__device__ constexpr bool has_conversion() {
  return false;
}
__device__ inline uint32_t convert_pair(const EightBitsLayout& /*layout*/, float /*low*/, float /*high*/) { return 0; }

#endif

// The significand, shifted to the format's places. Integers: no compiler may contract or flush what decides a tie.
__device__ inline uint32_t eight_bits(const EightBitsLayout& layout, float x) {
  const int least = 128 - layout.bias;  // float exponent of the smallest normal number
  const uint32_t bits = __float_as_uint(x), largest = __float_as_uint(layout.largest);
  const uint32_t given = bits & 0x7FFFFFFF, sign = (bits >> 31) << 7;
  const uint32_t magnitude = given < largest ? given : largest;
  const int above = static_cast<int>(magnitude >> 23) - least, below = above < 0 ? -above : 0;
  const int shift = 23 - layout.mantissa_bits + (below < 9 ? below : 9);  // by 29, all 24 bits give 0
  const uint32_t significand = (magnitude & 0x7FFFFF) | 0x800000;
  const uint32_t half = (1u << (shift - 1)) - 1 + ((significand >> shift) & 1);
  const uint32_t code =
      ((significand + half) >> shift) + (static_cast<uint32_t>(above > 0 ? above : 0) << layout.mantissa_bits);
  const bool is_nan = given > 0x7F800000;
  if (layout.is_fnuz) return is_nan ? layout.nan : code == 0 ? 0 : code | sign;
  return (is_nan ? layout.nan : code) | sign;
}

// The codes of kCount numbers, four a word, the first lowest. has_nan: one of them is.
template <bool kIsFnuz, int kCount>
__device__ void round_to_eight_bits(const EightBitsLayout& layout, const float (&x)[kCount], bool has_nan,
                                    uint32_t (&words)[kCount / 4]) {
  if (has_conversion<kIsFnuz>() && !has_nan) {
    MEGALITH_UNROLL
    for (int i = 0; i < kCount / 4; ++i) {
      words[i] =
          convert_pair(layout, x[4 * i], x[4 * i + 1]) | convert_pair(layout, x[4 * i + 2], x[4 * i + 3]) << 16;
    }
    return;
  }
  MEGALITH_UNROLL
  for (int i = 0; i < kCount / 4; ++i) {
    words[i] = 0;
    MEGALITH_UNROLL
    for (int j = 0; j < 4; ++j) words[i] |= eight_bits(layout, x[4 * i + j]) << (8 * j);
  }
}

}  // namespace megalith::ops::gpu
