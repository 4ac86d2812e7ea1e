// Scratch memory and operands of tile_product (block_products.h). Left operands are row-major; right ones are pairs of
// rows in panels of at most 64 columns.
#pragma once

#include <cstdlib>
#include <cstring>
#include <new>

#include "ops/cpu/block_products.h"
#include "ops/cpu/lanes.h"

namespace megalith::ops::cpu::CPU_CAPABILITY {

// A thread's memory, in aligned pieces.
class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    for (int i = 0; i < count_; ++i) std::free(pieces_[i]);
  }
  template <typename T>
  T* take(int64_t count) {
    const size_t bytes = (static_cast<size_t>(count) * sizeof(T) + 64) / 64 * 64;
    void* piece = count_ < kMaxPieces ? std::aligned_alloc(64, bytes) : nullptr;
    if (piece == nullptr) throw std::bad_alloc();
    pieces_[count_++] = piece;
    return static_cast<T*>(piece);
  }

 private:
  static constexpr int kMaxPieces = 24;
  void* pieces_[kMaxPieces];
  int count_ = 0;
};

// x (rows, 2 * pairs) bf16 -> transposed right operand (pairs, columns, 2); rows is at most `columns`.
inline void transpose_pairs(const uint16_t* x, int64_t stride, int64_t rows, int64_t pairs, uint16_t* out,
                            int64_t columns) {
  at::vec::transpose_mxn<float>(reinterpret_cast<const float*>(x), stride / 2, reinterpret_cast<float*>(out), columns,
                                static_cast<int>(rows), static_cast<int>(pairs));
}

// Two rows of a right operand: out (columns, 2).
inline void interleave(const uint16_t* even, const uint16_t* odd, int64_t columns, uint16_t* out) {
#pragma omp simd
  for (int64_t c = 0; c < columns; ++c) {
    reinterpret_cast<uint32_t*>(out)[c] = static_cast<uint32_t>(even[c]) | static_cast<uint32_t>(odd[c]) << 16;
  }
}

// x (rows, columns) bf16 -> right operand in panels of at most 64 columns; rows is even.
inline void pack_rows(const uint16_t* x, int64_t stride, int64_t rows, int64_t columns, uint16_t* out,
                      int64_t panel_stride) {
  for (int64_t first = 0; first < columns; first += 64, out += panel_stride) {
    const int64_t width = columns - first < 64 ? columns - first : 64;
    for (int64_t r = 0; r < rows; r += 2) {
      interleave(x + r * stride + first, x + (r + 1) * stride + first, width, out + r * width);
    }
  }
}

// c (m, columns) (+)= a (m, k) b, with b from pack_rows; b_row is the first used of its k rows.
inline void tile_product_panels(int64_t m, int64_t columns, int64_t k, const uint16_t* a, int64_t lda,
                                const uint16_t* b, int64_t b_row, int64_t panel_stride, float* c, int64_t ldc,
                                bool accumulate) {
  for (int64_t first = 0; first < columns; first += 64, b += panel_stride) {
    const int64_t width = columns - first < 64 ? columns - first : 64;
    tile_product(m, width, k, a, lda, b + b_row * width, width, c + first, ldc, accumulate);
  }
}

inline constexpr float kLog2E = 1.44269504088896341f;

// 2^t, relative error 2e-7; 0 for -inf, NaN for NaN.
inline Lanes<float> exp2_lanes(const Lanes<float>& t) {
#if defined(CPU_CAPABILITY_AVX512)
  // Flushes below 2^-125 to 0: denormals cost a hundred cycles each. max passes on its second operand's NaN.
  const __m512 lowest = _mm512_set1_ps(-125.f);
  const __mmask16 is_normal = _mm512_cmp_ps_mask(t, lowest, _CMP_NLT_UQ);
  const __m512 x = _mm512_max_ps(lowest, t);
  const __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 f = _mm512_sub_ps(x, whole);  // in ±1/2: Taylor's remainder (f ln 2)^7 / 7! is below 2e-7
  __m512 y = _mm512_set1_ps(1.54035304e-4f);
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(1.33335581e-3f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(9.61812911e-3f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(5.55041087e-2f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(2.40226507e-1f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(6.93147181e-1f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(1.f));
  return _mm512_maskz_scalef_ps(is_normal, y, whole);
#else
  return (t * Lanes<float>(0.693147180559945309f)).exp_u20();
#endif
}

// Ties to even. All processors with tiles have this.
inline void store_bf16(uint16_t* p, const Lanes<float>& lanes) {
#if defined(CPU_CAPABILITY_AVX512)
  __m256i bits;
  asm("vcvtneps2bf16 %1, %0" : "=v"(bits) : "v"(static_cast<__m512>(lanes)));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), bits);
#else
  store(reinterpret_cast<c10::BFloat16*>(p), lanes, FullCount<c10::BFloat16>{});
#endif
}

}  // namespace megalith::ops::cpu::CPU_CAPABILITY
