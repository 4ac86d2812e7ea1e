// One pass, memory-bound.
#include "ops/activation/kernel.h"
#include "ops/gpu/gated_activation.h"

namespace megalith::ops::gpu {
namespace {

template <typename Activation, typename T, int kCount>
__global__ void __launch_bounds__(kElementwiseThreads)
    activate(VectorGrid grid, int64_t columns, const T* x, T* y) {
  for_each_vector(grid, [&](int64_t row, int64_t vector) {
    const int64_t place = row * columns + vector * kCount;
    const auto values = load_vector<kCount>(x + place);
    Vector<T, kCount> result;
    MEGALITH_UNROLL
    for (int i = 0; i < kCount; ++i) result[i] = Rounding<T>::of(Activation::template at<T>(widen(values[i])).value);
    store_vector(y + place, result);
  });
}

template <typename Activation, typename T, int kCount>
__global__ void __launch_bounds__(kElementwiseThreads)
    activate_backward(VectorGrid grid, int64_t columns, const T* dy, const T* x, T* dx) {
  for_each_vector(grid, [&](int64_t row, int64_t vector) {
    const int64_t place = row * columns + vector * kCount;
    const auto grads = load_vector<kCount>(dy + place), values = load_vector<kCount>(x + place);
    Vector<T, kCount> result;
    MEGALITH_UNROLL
    for (int i = 0; i < kCount; ++i) {
      result[i] = Rounding<T>::of(widen(grads[i]) * Activation::template at<T>(widen(values[i])).slope);
    }
    store_vector(dx + place, result);
  });
}

template <typename Activation>
void launch(const ActivationCall& a, void* stream) {
  with_type(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    with_vector_width<T>(are_aligned(a.x, a.y) && is_whole_vectors<T>(a.columns), [&](auto count) {
      launch_vectors("activation", activate<Activation, T, count()>, a.rows, a.columns / count(), stream, a.columns,
                     static_cast<const T*>(a.x), static_cast<T*>(a.y));
    });
  });
}

template <typename Activation>
void launch_backward(const ActivationCall& a, void* stream) {
  with_type(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    with_vector_width<T>(are_aligned(a.dy, a.x, a.dx) && is_whole_vectors<T>(a.columns), [&](auto count) {
      launch_vectors("activation_backward", activate_backward<Activation, T, count()>, a.rows, a.columns / count(),
                     stream, a.columns, static_cast<const T*>(a.dy), static_cast<const T*>(a.x),
                     static_cast<T*>(a.dx));
    });
  });
}

// Runs body with an object of a form of GELU.
template <typename Body>
void with_gelu(ActivationKind kind, Body&& body) {
  kind == ActivationKind::kGelu ? body(ErfGelu{}) : body(TanhGelu{});
}

}  // namespace

void activation(const ActivationCall& a, void* stream) {
  if (a.kind == ActivationKind::kSquaredRelu) return launch<SquaredRelu>(a, stream);
  with_gelu(a.kind, [&](auto gelu) {
    if (!a.is_gated) return launch<decltype(gelu)>(a, stream);
    launch_gated_activation<decltype(gelu)>("activation", a.dtype, a.rows, a.columns, a.x, a.y, /*amax=*/nullptr,
                                            stream);
  });
}

void activation_backward(const ActivationCall& a, void* stream) {
  if (a.kind == ActivationKind::kSquaredRelu) return launch_backward<SquaredRelu>(a, stream);
  with_gelu(a.kind, [&](auto gelu) {
    if (!a.is_gated) return launch_backward<decltype(gelu)>(a, stream);
    launch_gated_activation_backward<decltype(gelu)>("activation_backward", a.dtype, a.rows, a.columns, a.dy, a.x, a.dx,
                                                     stream);
  });
}

}  // namespace megalith::ops::gpu
