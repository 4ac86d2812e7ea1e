// A thread draws one Philox block, for four columns.
#include "ops/gpu/element.h"
#include "ops/gpu/elementwise.h"
#include "ops/gpu/philox.h"
#include "ops/jitter/kernel.h"

namespace megalith::ops::gpu {
namespace {

constexpr int kWordsOfBlock = 4;

struct JitterNumbers {
  uint64_t key;
  double least, range;  // noise
  int64_t columns;
};

template <typename T, bool kIsAligned>
__global__ void __launch_bounds__(kElementwiseThreads)
    multiply_by_noise(VectorGrid grid, JitterNumbers a, const T* x, const int64_t* row_ids, T* y) {
  for_each_vector(grid, [&](int64_t row, int64_t block) {
    const int64_t column = block * kWordsOfBlock, start = row * a.columns + column;
    const PhiloxWords drawn = philox_words(a.key, static_cast<uint64_t>(block), static_cast<uint64_t>(row_ids[row]));
    const auto product = [&](T value, int i) {
      const double noise = a.least + a.range * (drawn.words[i] * 0x1p-32);
      return Rounding<T>::of(widen(value) * rounded<T>(static_cast<Wide<T>>(noise)));
    };
    if constexpr (kIsAligned) {
      const auto values = load_vector<kWordsOfBlock>(x + start);
      Vector<T, kWordsOfBlock> result;
      MEGALITH_UNROLL
      for (int i = 0; i < kWordsOfBlock; ++i) result[i] = product(values[i], i);
      store_vector(y + start, result);
    } else {
      MEGALITH_UNROLL
      for (int i = 0; i < kWordsOfBlock; ++i) {
        if (column + i < a.columns) y[start + i] = product(x[start + i], i);
      }
    }
  });
}

}  // namespace

void jitter(const JitterCall& a, void* stream) {
  const JitterNumbers numbers{.key = a.key, .least = 1 - a.eps, .range = 2 * a.eps, .columns = a.columns};
  with_type(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto start = [&](auto* kernel) {
      launch_vectors("jitter", kernel, a.rows, (a.columns + kWordsOfBlock - 1) / kWordsOfBlock, stream, numbers,
                     static_cast<const T*>(a.x), a.row_ids, static_cast<T*>(a.y));
    };
    if constexpr (sizeof(T) < sizeof(double)) {
      if (are_aligned(a.x, a.y) && a.columns % kWordsOfBlock == 0) return start(multiply_by_noise<T, true>);
    }
    start(multiply_by_noise<T, false>);
  });
}

}  // namespace megalith::ops::gpu
