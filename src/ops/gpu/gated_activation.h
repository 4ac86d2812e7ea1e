// Kernels of swiglu and gated GELU: y = round(activation(gate)) * up of rows [gate | up], optionally with amax; and the
// gradient.
#pragma once

#include "ops/gpu/activations.h"
#include "ops/gpu/elementwise.h"
#include "ops/gpu/largest.h"

namespace megalith::ops::gpu {

template <typename Activation, typename T, int kCount>
__global__ void __launch_bounds__(kElementwiseThreads)
    gated_activation(VectorGrid grid, int64_t columns, const T* gate_up, T* y, void* amax) {
  Largest<Wide<T>> largest;
  for_each_vector(grid, [&](int64_t row, int64_t vector) {
    const int64_t column = vector * kCount;
    const T* gate_at = gate_up + row * 2 * columns + column;
    const auto gate = load_vector<kCount>(gate_at), up = load_vector<kCount>(gate_at + columns);
    Vector<T, kCount> result;
    MEGALITH_UNROLL
    for (int i = 0; i < kCount; ++i) {
      const Wide<T> value = rounded<T>(Activation::template at<T>(widen(gate[i])).value);
      result[i] = Rounding<T>::of(value * widen(up[i]));
      largest.take(widen(result[i]));
    }
    store_vector(y + row * columns + column, result);
  });
  largest.raise(amax);
}

template <typename Activation, typename T, int kCount>
__global__ void __launch_bounds__(kElementwiseThreads)
    gated_activation_backward(VectorGrid grid, int64_t columns, const T* dy, const T* gate_up, T* dgate_up) {
  for_each_vector(grid, [&](int64_t row, int64_t vector) {
    const int64_t column = vector * kCount, gate_place = row * 2 * columns + column;
    const auto gate = load_vector<kCount>(gate_up + gate_place),
               up = load_vector<kCount>(gate_up + gate_place + columns);
    const auto grads = load_vector<kCount>(dy + row * columns + column);
    Vector<T, kCount> dgate, dup;
    MEGALITH_UNROLL
    for (int i = 0; i < kCount; ++i) {
      const Wide<T> grad = widen(grads[i]);
      const auto [value, slope] = Activation::template at<T>(widen(gate[i]));
      dup[i] = Rounding<T>::of(grad * rounded<T>(value));
      dgate[i] = Rounding<T>::of(grad * widen(up[i]) * slope);
    }
    store_vector(dgate_up + gate_place, dgate);
    store_vector(dgate_up + gate_place + columns, dup);
  });
}

template <typename Activation>
void launch_gated_activation(const char* name, Dtype dtype, int64_t rows, int64_t columns, const void* gate_up, void* y,
                             void* amax, void* stream) {
  with_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    with_vector_width<T>(are_aligned(gate_up, y) && is_whole_vectors<T>(columns), [&](auto count) {
      launch_vectors(name, gated_activation<Activation, T, count()>, rows, columns / count(), stream, columns,
                     static_cast<const T*>(gate_up), static_cast<T*>(y), amax);
    });
  });
}

template <typename Activation>
void launch_gated_activation_backward(const char* name, Dtype dtype, int64_t rows, int64_t columns, const void* dy,
                                      const void* gate_up, void* dgate_up, void* stream) {
  with_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    with_vector_width<T>(are_aligned(dy, gate_up, dgate_up) && is_whole_vectors<T>(columns), [&](auto count) {
      launch_vectors(name, gated_activation_backward<Activation, T, count()>, rows, columns / count(), stream, columns,
                     static_cast<const T*>(dy), static_cast<const T*>(gate_up), static_cast<T*>(dgate_up));
    });
  });
}

}  // namespace megalith::ops::gpu
