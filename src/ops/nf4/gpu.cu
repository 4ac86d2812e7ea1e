// A thread writes 16 bytes, so a wave's codes are consecutive. Lanes reading different values from shared memory do not
// conflict.
#include "ops/gpu/element.h"
#include "ops/gpu/elementwise.h"
#include "ops/nf4/kernel.h"

namespace megalith::ops::gpu {
namespace {

constexpr unsigned kNumValues = 16;

struct Nf4Row {
  int64_t bytes, blocks;
  Nf4Values values;
};

__device__ inline float nf4_scale(const Nf4DequantiseCall& a, int64_t blocks, int64_t row, int64_t block) {
  const float* group = a.groups + 2 * ((a.first_blocks[row] + block) >> kLog2Nf4ScaleGroup);
  // A double's product is exact: contraction changes no bit.
  return static_cast<float>(double{a.levels[a.scales[row * blocks + block]]} * group[0] + group[1]);
}

__device__ inline unsigned nf4_code(uint8_t byte, int64_t column) {
  return column % 2 == 0 ? byte >> 4 : byte & (kNumValues - 1);
}

template <typename T, int kCount>
__global__ void __launch_bounds__(kElementwiseThreads)
    dequantise(VectorGrid grid, Nf4DequantiseCall a, Nf4Row every) {
  MEGALITH_SHARED(float, values, kNumValues);
  if (threadIdx.x < kNumValues) values[threadIdx.x] = every.values.of[threadIdx.x];
  __syncthreads();  // the values are there
  for_each_vector(grid, [&](int64_t row, int64_t vector) {
    const int64_t column = vector * kCount;
    const Wide<T> scale = nf4_scale(a, every.blocks, row, column >> kLog2Nf4Block);
    const uint8_t* codes = a.codes + row * every.bytes + column / 2;
    Vector<T, kCount> result;
    if constexpr (kCount == 1) {
      result[0] = Rounding<T>::of(values[nf4_code(codes[0], column)] * scale);
    } else {
      const auto packed = load_vector<kCount / 2>(codes);
      MEGALITH_UNROLL
      for (int i = 0; i < kCount; ++i) result[i] = Rounding<T>::of(values[nf4_code(packed[i / 2], i)] * scale);
    }
    store_vector(static_cast<T*>(a.y) + row * a.columns + column, result);
  });
}

}  // namespace

void nf4_dequantise(const Nf4DequantiseCall& a, void* stream) {
  const Nf4Row row{.bytes = nf4_bytes_of_row(a.columns), .blocks = nf4_blocks_of_row(a.columns), .values = {}};
  with_type(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    with_vector_width<T>(are_aligned(a.codes, a.y) && is_whole_vectors<T>(a.columns), [&](auto count) {
      launch_vectors("nf4_dequantise", dequantise<T, count()>, a.rows, a.columns / count(), stream, a, row);
    });
  });
}

}  // namespace megalith::ops::gpu
