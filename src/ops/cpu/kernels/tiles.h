// Scratch memory and operands of tile_product (block_products.h) for kernel files. Left operands are row-major; right ones
// lie in pairs of rows, in panels of at most 64 columns.
#pragma once

#include <cstdlib>
#include <cstring>
#include <new>

#include "ops/cpu/block_products.h"
#include "ops/cpu/kernels/lanes.h"

namespace megalith::ops::cpu::CPU_CAPABILITY {

// Scratch memory of one thread: taken once, handed out in aligned pieces.
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

// x (rows, 2 * pairs) bf16 -> its transpose as a right operand: (pairs, columns, 2); rows is at most `columns`.
inline void transpose_pairs(const uint16_t* x, int64_t stride, int64_t rows, int64_t pairs, uint16_t* out,
                            int64_t columns) {
  at::vec::transpose_mxn<float>(reinterpret_cast<const float*>(x), stride / 2, reinterpret_cast<float*>(out), columns,
                                static_cast<int>(rows), static_cast<int>(pairs));
}

// Two rows of a right operand side by side: out (columns, 2).
inline void interleave(const uint16_t* even, const uint16_t* odd, int64_t columns, uint16_t* out) {
#pragma omp simd
  for (int64_t c = 0; c < columns; ++c) {
    reinterpret_cast<uint32_t*>(out)[c] = static_cast<uint32_t>(even[c]) | static_cast<uint32_t>(odd[c]) << 16;
  }
}

// x (rows, columns) bf16 -> right operand in panels of at most 64 columns, panel_stride elements apart; rows is even.
inline void pack_rows(const uint16_t* x, int64_t stride, int64_t rows, int64_t columns, uint16_t* out,
                      int64_t panel_stride) {
  for (int64_t first = 0; first < columns; first += 64, out += panel_stride) {
    const int64_t width = columns - first < 64 ? columns - first : 64;
    for (int64_t r = 0; r < rows; r += 2) {
      interleave(x + r * stride + first, x + (r + 1) * stride + first, width, out + r * width);
    }
  }
}

// c (m, columns) (+)= a (m, k) b, b packed by pack_rows with k rows in all; b_row is the first that takes part.
inline void tile_product_panels(int64_t m, int64_t columns, int64_t k, const uint16_t* a, int64_t lda,
                                const uint16_t* b, int64_t b_row, int64_t panel_stride, float* c, int64_t ldc,
                                bool accumulate) {
  for (int64_t first = 0; first < columns; first += 64, b += panel_stride) {
    const int64_t width = columns - first < 64 ? columns - first : 64;
    tile_product(m, width, k, a, lda, b + b_row * width, width, c + first, ldc, accumulate);
  }
}

}  // namespace megalith::ops::cpu::CPU_CAPABILITY
