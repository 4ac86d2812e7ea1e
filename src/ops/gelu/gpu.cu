// One pass, memory-bound.
#include "ops/gelu/kernel.h"
#include "ops/gpu/gated_activation.h"

namespace megalith::ops::gpu {
namespace {

template <typename T, int kCount>
__device__ void load_biased(const T* x, const T* bias, int64_t row, int64_t columns, int64_t column,
                            Wide<T> (&sums)[kCount]) {
  const auto values = load_vector<kCount>(x + row * columns + column);
  MEGALITH_UNROLL
  for (int i = 0; i < kCount; ++i) sums[i] = widen(values[i]);
  if (bias == nullptr) return;
  const auto biases = load_vector<kCount>(bias + column);
  MEGALITH_UNROLL
  for (int i = 0; i < kCount; ++i) sums[i] += widen(biases[i]);
}

template <typename Activation, typename T, int kCount>
__global__ void __launch_bounds__(kElementwiseThreads)
    activate(VectorGrid grid, int64_t columns, const T* x, const T* bias, T* y) {
  for_each_vector(grid, [&](int64_t row, int64_t vector) {
    const int64_t column = vector * kCount;
    Wide<T> sums[kCount];
    load_biased(x, bias, row, columns, column, sums);
    Vector<T, kCount> result;
    MEGALITH_UNROLL
    for (int i = 0; i < kCount; ++i) result[i] = Rounding<T>::of(Activation::template at<T>(sums[i]).value);
    store_vector(y + row * columns + column, result);
  });
}

template <typename Activation, typename T, int kCount>
__global__ void __launch_bounds__(kElementwiseThreads)
    activate_backward(VectorGrid grid, int64_t columns, const T* dy, const T* x, const T* bias, T* dx) {
  for_each_vector(grid, [&](int64_t row, int64_t vector) {
    const int64_t column = vector * kCount;
    const auto grads = load_vector<kCount>(dy + row * columns + column);
    Wide<T> sums[kCount];
    load_biased(x, bias, row, columns, column, sums);
    Vector<T, kCount> result;
    MEGALITH_UNROLL
    for (int i = 0; i < kCount; ++i) {
      result[i] = Rounding<T>::of(widen(grads[i]) * Activation::template at<T>(sums[i]).slope);
    }
    store_vector(dx + row * columns + column, result);
  });
}

template <typename Activation>
void launch_activation(const char* name, const BiasActivation& a, void* stream) {
  with_type(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    with_vector_width<T>(are_aligned(a.x, a.bias, a.y) && is_whole_vectors<T>(a.columns), [&](auto count) {
      launch_vectors(name, activate<Activation, T, count()>, a.rows, a.columns / count(), stream, a.columns,
                     static_cast<const T*>(a.x), static_cast<const T*>(a.bias), static_cast<T*>(a.y));
    });
  });
}

template <typename Activation>
void launch_activation_backward(const char* name, const BiasActivationBackward& a, void* stream) {
  with_type(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    with_vector_width<T>(are_aligned(a.dy, a.x, a.bias, a.dx) && is_whole_vectors<T>(a.columns), [&](auto count) {
      launch_vectors(name, activate_backward<Activation, T, count()>, a.rows, a.columns / count(), stream, a.columns,
                     static_cast<const T*>(a.dy), static_cast<const T*>(a.x), static_cast<const T*>(a.bias),
                     static_cast<T*>(a.dx));
    });
  });
}

template <typename Body>
void with_form(GeluForm form, Body&& body) {
  switch (form) {
    case GeluForm::kTanh:
      return body(TanhGelu{});
    case GeluForm::kErf:
      return body(ErfGelu{});
    case GeluForm::kQuick:
      return body(QuickGelu{});
  }
}

}  // namespace

void bias_gelu(const BiasGelu& a, void* stream) {
  with_form(a.form, [&](auto activation) { launch_activation<decltype(activation)>("bias_gelu", a.call, stream); });
}

void bias_gelu_backward(const BiasGeluBackward& a, void* stream) {
  with_form(a.form, [&](auto activation) {
    launch_activation_backward<decltype(activation)>("bias_gelu_backward", a.call, stream);
  });
}

void geglu(const GegluForward& a, void* stream) {
  with_form(a.form, [&](auto activation) {
    launch_gated_activation<decltype(activation)>("geglu", a.dtype, a.rows, a.columns, a.gate_up, a.y,
                                                  /*amax=*/nullptr, stream);
  });
}

void geglu_backward(const GegluBackward& a, void* stream) {
  with_form(a.form, [&](auto activation) {
    launch_gated_activation_backward<decltype(activation)>("geglu_backward", a.dtype, a.rows, a.columns, a.dy,
                                                           a.gate_up, a.dgate_up, stream);
  });
}

void bias_squared_relu(const BiasActivation& a, void* stream) {
  launch_activation<SquaredRelu>("bias_squared_relu", a, stream);
}

void bias_squared_relu_backward(const BiasActivationBackward& a, void* stream) {
  launch_activation_backward<SquaredRelu>("bias_squared_relu_backward", a, stream);
}

}  // namespace megalith::ops::gpu
