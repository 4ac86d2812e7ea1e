// A thread draws one or two Philox blocks, for four columns each.
#include <cmath>

#include "ops/dropout/kernel.h"
#include "ops/gpu/element.h"
#include "ops/gpu/elementwise.h"
#include "ops/gpu/philox.h"

namespace megalith::ops::gpu {
namespace {

template <typename W>
struct DropoutNumbers {
  uint64_t key, threshold;  // keeps words from it on
  W scale;
  int64_t column_start, columns;
};

// Whole blocks, which may overlap the row's ends.
template <typename T>
inline constexpr int kColumnsOfThread = sizeof(T) == 2 ? 8 : 4;

// keep[i]: column 4 first_block + i of the whole tensor.
template <int kCount>
__device__ void draw(uint64_t key, uint64_t threshold, int64_t first_block, int64_t row_id, bool (&keep)[kCount]) {
  MEGALITH_UNROLL
  for (int block = 0; block < kCount / 4; ++block) {
    const PhiloxWords drawn =
        philox_words(key, static_cast<uint64_t>(first_block + block), static_cast<uint64_t>(row_id));
    MEGALITH_UNROLL
    for (int i = 0; i < 4; ++i) keep[4 * block + i] = drawn.words[i] >= threshold;
  }
}

template <typename T, bool kIsAligned>
__global__ void __launch_bounds__(kElementwiseThreads)
    drop(VectorGrid grid, DropoutNumbers<Wide<T>> a, const T* x, const int64_t* row_ids, T* y) {
  constexpr int kCount = kColumnsOfThread<T>;
  for_each_vector(grid, [&](int64_t row, int64_t vector) {
    const int64_t first_block = a.column_start / 4 + vector * (kCount / 4);
    const int64_t column = first_block * 4 - a.column_start;  // may be negative
    const T* from = x + row * a.columns;
    T* to = y + row * a.columns;
    // Selects: an infinity times 0 would be NaN.
    const auto decided = [&](T value, bool is_kept) {
      return Rounding<T>::of(is_kept ? widen(value) * a.scale : Wide<T>(0));
    };
    bool keep[kCount];
    if constexpr (kIsAligned) {
      const auto values = load_vector<kCount>(from + column);
      draw(a.key, a.threshold, first_block, row_ids[row], keep);
      Vector<T, kCount> result;
      MEGALITH_UNROLL
      for (int i = 0; i < kCount; ++i) result[i] = decided(values[i], keep[i]);
      store_vector(to + column, result);
    } else {
      draw(a.key, a.threshold, first_block, row_ids[row], keep);
      MEGALITH_UNROLL
      for (int i = 0; i < kCount; ++i) {
        const int64_t c = column + i;
        if (c >= 0 && c < a.columns) to[c] = decided(from[c], keep[i]);
      }
    }
  });
}

}  // namespace

void dropout(const DropoutCall& a, void* stream) {
  if (a.columns == 0) return;
  with_type(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    constexpr int64_t kCount = kColumnsOfThread<T>;
    const DropoutNumbers<Wide<T>> numbers{.key = a.key,
                                          .threshold = static_cast<uint64_t>(std::ceil(a.p * 0x1p32)),
                                          .scale = static_cast<Wide<T>>(1 / (1 - a.p)),
                                          .column_start = a.column_start,
                                          .columns = a.columns};
    const auto start = [&](auto* kernel, int64_t columns) {
      launch_vectors("dropout", kernel, a.rows, (columns + kCount - 1) / kCount, stream, numbers,
                     static_cast<const T*>(a.x), a.row_ids, static_cast<T*>(a.y));
    };
    if constexpr (sizeof(T) < sizeof(double)) {
      if (are_aligned(a.x, a.y) && a.columns % kCount == 0 && a.column_start % 4 == 0) {
        return start(drop<T, true>, a.columns);
      }
    }
    start(drop<T, false>, a.column_start % 4 + a.columns);
  });
}

}  // namespace megalith::ops::gpu
