// A thread loads and rounds a few channels' angles once for several of a token's heads.
#include "ops/gpu/element.h"
#include "ops/gpu/elementwise.h"
#include "ops/rotary/kernel.h"

namespace megalith::ops::gpu {
namespace {

constexpr int kHeadsOfThread = 4;

template <typename T, int kCount>
__device__ void load_angles(const Wide<T>* from, Wide<T> (&angles)[kCount]) {
  constexpr int kWidth = kCount < 4 ? kCount : 4;  // floats in 16 bytes
  MEGALITH_UNROLL
  for (int first = 0; first < kCount; first += kWidth) {
    const auto some = load_vector<kWidth>(from + first);
    MEGALITH_UNROLL
    for (int i = 0; i < kWidth; ++i) angles[first + i] = rounded<T>(some[i]);
  }
}

// Turns kCount pairs: two runs of kCount channels, the pairs' first and second ones, or alternating.
template <typename T, int kCount, bool kIsInterleaved>
__device__ void turn_pairs(const T* x, T* y, int64_t apart, const Wide<T> (&cos)[kCount],
                           const Wide<T> (&sin)[kCount]) {
  const Vector<T, kCount> in[] = {load_vector<kCount>(x), load_vector<kCount>(x + apart)};
  Vector<T, kCount> out[2];
  MEGALITH_UNROLL
  for (int i = 0; i < kCount; ++i) {
    const int first = kIsInterleaved ? 2 * i : i, second = kIsInterleaved ? 2 * i + 1 : kCount + i;
    const Wide<T> u = widen(in[first / kCount][first % kCount]), v = widen(in[second / kCount][second % kCount]);
    out[first / kCount][first % kCount] = Rounding<T>::of(u * cos[i] - v * sin[i]);
    out[second / kCount][second % kCount] = Rounding<T>::of(v * cos[i] + u * sin[i]);
  }
  store_vector(y, out[0]);
  store_vector(y + apart, out[1]);
}

// A row of the grid is a few of a token's heads.
template <typename T, int kCount, bool kIsInterleaved>
__global__ void __launch_bounds__(kElementwiseThreads) turn(VectorGrid grid, RotaryTurn a, int64_t runs_of_heads) {
  for_each_vector(grid, [&](int64_t row, int64_t vector) {
    const int64_t token = row / runs_of_heads, first_head = row % runs_of_heads * kHeadsOfThread;
    const int64_t b = token / a.sequence, position = token % a.sequence;
    const T* x = static_cast<const T*>(a.x) + b * a.x_strides.batch + position * a.x_strides.sequence;
    T* y = static_cast<T*>(a.y) + b * a.y_strides.batch + position * a.y_strides.sequence;
    const int64_t i = vector * kCount;
    const int64_t last_head = first_head + kHeadsOfThread < a.heads ? first_head + kHeadsOfThread : a.heads;
    if (i < a.half) {
      const int64_t angle = b * a.angle_batch_stride + position * a.half + i;
      Wide<T> cos[kCount], sin[kCount];
      load_angles<T>(static_cast<const Wide<T>*>(a.cos) + angle, cos);
      load_angles<T>(static_cast<const Wide<T>*>(a.sin) + angle, sin);
      if (a.turns_back) {
        MEGALITH_UNROLL
        for (int j = 0; j < kCount; ++j) sin[j] = -sin[j];
      }
      const int64_t channel = kIsInterleaved ? 2 * i : i, apart = kIsInterleaved ? kCount : a.half;
      for (int64_t head = first_head; head < last_head; ++head) {
        turn_pairs<T, kCount, kIsInterleaved>(x + head * a.x_strides.head + channel,
                                              y + head * a.y_strides.head + channel, apart, cos, sin);
      }
    }
    for (int64_t channel = 2 * a.half + i; channel < a.channels; channel += grid.vectors * kCount) {
      for (int64_t head = first_head; head < last_head; ++head) {
        store_vector(y + head * a.y_strides.head + channel, load_vector<kCount>(x + head * a.x_strides.head + channel));
      }
    }
  });
}

// Every head begins at a vector. Dims of size one may have any stride.
template <typename T>
bool are_heads_aligned(const RotaryTurn& a, const HeadStrides& strides) {
  return (a.batch == 1 || is_whole_vectors<T>(strides.batch)) &&
         (a.sequence == 1 || is_whole_vectors<T>(strides.sequence)) &&
         (a.heads == 1 || is_whole_vectors<T>(strides.head));
}

template <typename T>
bool is_aligned(const RotaryTurn& a) {
  return are_aligned(a.x, a.cos, a.sin, a.y) && is_whole_vectors<T>(a.half) && is_whole_vectors<T>(a.channels) &&
         are_heads_aligned<T>(a, a.x_strides) && are_heads_aligned<T>(a, a.y_strides);
}

}  // namespace

void rotary(const RotaryTurn& a, void* stream) {
  if (a.channels == 0) return;
  const int64_t runs_of_heads = (a.heads + kHeadsOfThread - 1) / kHeadsOfThread;
  with_type(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    with_vector_width<T>(is_aligned<T>(a), [&](auto count) {
      const auto kernel = a.is_interleaved ? turn<T, count(), true> : turn<T, count(), false>;
      // Threads are needed even if nothing turns.
      launch_vectors(a.turns_back ? "rotary_backward" : "rotary", kernel, a.batch * a.sequence * runs_of_heads,
                     std::max<int64_t>(a.half / count(), 1), stream, a, runs_of_heads);
    });
  });
}

}  // namespace megalith::ops::gpu
