// Products of small row-major fp32 or fp64 blocks: LibTorch exports no BLAS for parallel regions. Tiles of c stay in
// registers, summed in order of k.
#pragma once

#include "ops/cpu/lanes.h"

namespace megalith::ops::cpu::CPU_CAPABILITY {

// kRows x kVectors registers of c (+)= a (kRows, k) b (k, columns).
template <int kRows, int kVectors, typename W>
inline void product_tile(int64_t k, const W* a, int64_t lda, const W* b, int64_t ldb, W* c, int64_t ldc,
                         bool accumulate) {
  constexpr int64_t kWidth = kLanes<W>;
  Lanes<W> sums[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int x = 0; x < kVectors; ++x) {
      sums[r][x] = accumulate ? Lanes<W>::loadu(c + r * ldc + x * kWidth) : Lanes<W>(W(0));
    }
  }
  for (int64_t i = 0; i < k; ++i) {
    Lanes<W> right[kVectors];
    for (int x = 0; x < kVectors; ++x) right[x] = Lanes<W>::loadu(b + i * ldb + x * kWidth);
    for (int r = 0; r < kRows; ++r) {
      const Lanes<W> left(a[r * lda + i]);
      for (int x = 0; x < kVectors; ++x) sums[r][x] = at::vec::fmadd(left, right[x], sums[r][x]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int x = 0; x < kVectors; ++x) sums[r][x].store(c + r * ldc + x * kWidth);
  }
}

template <int kVectors, typename W>
inline void product_columns(int64_t m, int64_t k, const W* a, int64_t lda, const W* b, int64_t ldb, W* c, int64_t ldc,
                            bool accumulate) {
  constexpr int kRows = 6;
  int64_t r = 0;
  for (; r + kRows <= m; r += kRows) {
    product_tile<kRows, kVectors>(k, a + r * lda, lda, b, ldb, c + r * ldc, ldc, accumulate);
  }
  for (; r + 2 <= m; r += 2) product_tile<2, kVectors>(k, a + r * lda, lda, b, ldb, c + r * ldc, ldc, accumulate);
  for (; r < m; ++r) product_tile<1, kVectors>(k, a + r * lda, lda, b, ldb, c + r * ldc, ldc, accumulate);
}

// c (m, n) (+)= a (m, k) b (k, n); n is a multiple of the lanes (at most 16).
template <typename W>
inline void plain_product(int64_t m, int64_t n, int64_t k, const W* a, int64_t lda, const W* b, int64_t ldb, W* c,
                          int64_t ldc, bool accumulate) {
#if defined(CPU_CAPABILITY_AVX512)
  constexpr int kVectors = 4;  // 24 sums of 32 registers
#else
  constexpr int kVectors = 2;  // 12 sums of 16 registers
#endif
  constexpr int64_t kWidth = kVectors * kLanes<W>;
  int64_t column = 0;
  for (; column + kWidth <= n; column += kWidth) {
    product_columns<kVectors>(m, k, a, lda, b + column, ldb, c + column, ldc, accumulate);
  }
  for (; column < n; column += kLanes<W>) {
    product_columns<1>(m, k, a, lda, b + column, ldb, c + column, ldc, accumulate);
  }
}

}  // namespace megalith::ops::cpu::CPU_CAPABILITY
