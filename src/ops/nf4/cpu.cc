// By blocks of 64. Codes index 16 numbers: two registers of AVX2, one of AVX-512.
#include <ATen/Parallel.h>

#include "ops/cpu/lanes.h"
#include "ops/nf4/kernel.h"

namespace megalith::ops::cpu::CPU_CAPABILITY {
namespace {

constexpr int64_t kNf4BlockSize = int64_t{1} << kLog2Nf4Block;
constexpr int kNf4ZeroCode = 7, kNf4Codes = 16;
constexpr Nf4Values kNf4Values;

struct Nf4Boundaries {
  float above[kNf4Codes - 1] = {};  // halfway between values k and k + 1
  constexpr Nf4Boundaries() {
    for (int k = 0; k + 1 < kNf4Codes; ++k) above[k] = (kNf4Values.of[k] + kNf4Values.of[k + 1]) / 2;
  }
};
constexpr Nf4Boundaries kNf4Boundaries;

template <typename T>
float quantise_nf4_block(const T* x, int64_t count, uint8_t* codes) {
  float values[kNf4BlockSize] = {};
  float largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>(x[i]);
    const float magnitude = values[i] < 0 ? -values[i] : values[i];
    // NaN is sticky in a block.
    largest = magnitude > largest || magnitude != magnitude ? magnitude : largest;
  }
  int32_t found[kNf4BlockSize] = {};
  const float inverse = 1 / largest;
  for (int64_t i = 0; i < kNf4BlockSize; ++i) values[i] *= inverse;
  for (const float boundary : kNf4Boundaries.above) {
    for (int64_t i = 0; i < kNf4BlockSize; ++i) found[i] += values[i] > boundary ? 1 : 0;
  }
  if (largest == 0) {
    for (int32_t& code : found) code = kNf4ZeroCode;
  }
  // An odd row ends with an unread code.
  for (int64_t i = 0; i < count; i += 2) codes[i / 2] = static_cast<uint8_t>(found[i] << 4 | found[i + 1]);
  return largest;
}

template <typename T>
void quantise_nf4_rows(const Nf4QuantiseCall& a) {
  const int64_t bytes = nf4_bytes_of_row(a.columns), blocks = nf4_blocks_of_row(a.columns);
  at::parallel_for(0, a.rows, 1 + 4096 / (a.columns + 1), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* x = static_cast<const T*>(a.x) + row * a.x_stride;
      for (int64_t block = 0; block < blocks; ++block) {
        const int64_t first = block * kNf4BlockSize, left = a.columns - first;
        const int64_t count = left < kNf4BlockSize ? left : kNf4BlockSize;
        a.scales[row * blocks + block] = quantise_nf4_block(x + first, count, a.codes + row * bytes + first / 2);
      }
    }
  });
}

// A block's codes as numbers.
template <typename W>
struct Nf4Numbers {
  alignas(64) W of[kNf4Codes];
  explicit Nf4Numbers(float scale) {
    for (int k = 0; k < kNf4Codes; ++k) of[k] = W(kNf4Values.of[k]) * W(scale);
  }
};

template <typename W>
void nf4_look_up(const Nf4Numbers<W>& numbers, const uint8_t* codes, int64_t count, W* out) {
  for (int64_t i = 0; i + 1 < count; i += 2) {
    out[i] = numbers.of[codes[i / 2] >> 4];
    out[i + 1] = numbers.of[codes[i / 2] & 15];
  }
  if (count % 2 != 0) out[count - 1] = numbers.of[codes[count / 2] >> 4];
}

#if defined(CPU_CAPABILITY_AVX512)
inline __m512i nf4_codes_of(const uint8_t* bytes) {
  int64_t eight;
  __builtin_memcpy(&eight, bytes, sizeof(eight));
  const __m128i packed = _mm_cvtsi64_si128(eight);
  const __m128i high = _mm_and_si128(_mm_srli_epi16(packed, 4), _mm_set1_epi8(15));
  const __m128i low = _mm_and_si128(packed, _mm_set1_epi8(15));
  return _mm512_cvtepu8_epi32(_mm_unpacklo_epi8(high, low));
}
inline void nf4_look_up_block(const Nf4Numbers<float>& numbers, const uint8_t* codes, float* out) {
  const __m512 table = _mm512_load_ps(numbers.of);
  for (int64_t i = 0; i < kNf4BlockSize; i += 16) {
    _mm512_storeu_ps(out + i, _mm512_permutexvar_ps(nf4_codes_of(codes + i / 2), table));
  }
}
#elif defined(CPU_CAPABILITY_AVX2)
inline __m256i nf4_codes_of(const uint8_t* bytes) {
  int32_t four;
  __builtin_memcpy(&four, bytes, sizeof(four));
  const __m128i packed = _mm_cvtsi32_si128(four);
  const __m128i high = _mm_and_si128(_mm_srli_epi16(packed, 4), _mm_set1_epi8(15));
  const __m128i low = _mm_and_si128(packed, _mm_set1_epi8(15));
  return _mm256_cvtepu8_epi32(_mm_unpacklo_epi8(high, low));
}
inline void nf4_look_up_block(const Nf4Numbers<float>& numbers, const uint8_t* codes, float* out) {
  const __m256 lower = _mm256_load_ps(numbers.of), upper = _mm256_load_ps(numbers.of + 8);
  for (int64_t i = 0; i < kNf4BlockSize; i += 8) {
    const __m256i code = nf4_codes_of(codes + i / 2);
    const __m256 is_upper = _mm256_castsi256_ps(_mm256_slli_epi32(code, 28));  // bit 3 as the sign
    _mm256_storeu_ps(out + i, _mm256_blendv_ps(_mm256_permutevar8x32_ps(lower, code),
                                               _mm256_permutevar8x32_ps(upper, code), is_upper));
  }
}
#else
inline void nf4_look_up_block(const Nf4Numbers<float>& numbers, const uint8_t* codes, float* out) {
  nf4_look_up(numbers, codes, kNf4BlockSize, out);
}
#endif
inline void nf4_look_up_block(const Nf4Numbers<double>& numbers, const uint8_t* codes, double* out) {
  nf4_look_up(numbers, codes, kNf4BlockSize, out);
}

template <typename T>
void dequantise_nf4_rows(const Nf4DequantiseCall& a) {
  const int64_t bytes = nf4_bytes_of_row(a.columns), blocks = nf4_blocks_of_row(a.columns);
  at::parallel_for(0, a.rows, 1 + 16384 / (a.columns + 1), [&](int64_t begin, int64_t end) {
    Wide<T> values[kNf4BlockSize];
    for (int64_t row = begin; row < end; ++row) {
      T* y = static_cast<T*>(a.y) + row * a.columns;
      for (int64_t block = 0; block < blocks; ++block) {
        const float* group = a.groups + 2 * ((a.first_blocks[row] + block) >> kLog2Nf4ScaleGroup);
        // Exact in double: contraction changes no bit.
        const auto scale = static_cast<float>(double{a.levels[a.scales[row * blocks + block]]} * group[0] + group[1]);
        const Nf4Numbers<Wide<T>> numbers(scale);
        const int64_t first = block * kNf4BlockSize, left = a.columns - first;
        const int64_t count = left < kNf4BlockSize ? left : kNf4BlockSize;
        const uint8_t* codes = a.codes + row * bytes + first / 2;
        if (count == kNf4BlockSize)
          nf4_look_up_block(numbers, codes, values);
        else
          nf4_look_up(numbers, codes, count, values);
        for_each_lanes<T>(count, [&](int64_t i, auto n) { store(y + first + i, load(values + i, n), n); });
      }
    }
  });
}

}  // namespace

void nf4_quantise(const Nf4QuantiseCall& a) {
  with_type(a.dtype, [&](auto zero) { quantise_nf4_rows<decltype(zero)>(a); });
}

void nf4_dequantise(const Nf4DequantiseCall& a) {
  with_type(a.dtype, [&](auto zero) { dequantise_nf4_rows<decltype(zero)>(a); });
}

}  // namespace megalith::ops::cpu::CPU_CAPABILITY
