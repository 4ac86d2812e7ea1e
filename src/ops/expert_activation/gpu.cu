// One pass, memory-bound.
#include <algorithm>

#include "ops/expert_activation/kernel.h"
#include "ops/gpu/activations.h"
#include "ops/gpu/block_sum.h"
#include "ops/gpu/elementwise.h"

namespace megalith::ops::gpu {
namespace {

template <typename W>
__device__ W weight_of_row(const W* weights, int64_t row) {
  return weights == nullptr ? W(1) : weights[row];
}

template <typename Activation, bool kIsGated, typename T, int kCount>
__global__ void __launch_bounds__(kElementwiseThreads)
    activate_experts(VectorGrid grid, int64_t columns, const T* x, const Wide<T>* weights, T* y) {
  for_each_vector(grid, [&](int64_t row, int64_t vector) {
    const int64_t column = vector * kCount;
    const T* from = x + row * columns * (kIsGated ? 2 : 1) + column;
    const auto gate = load_vector<kCount>(from);
    const auto up = kIsGated ? load_vector<kCount>(from + columns) : gate;
    const Wide<T> weight = weight_of_row(weights, row);
    Vector<T, kCount> result;
    MEGALITH_UNROLL
    for (int i = 0; i < kCount; ++i) {
      Wide<T> value = Activation::template at<T>(widen(gate[i])).value;
      if (kIsGated) value = rounded<T>(value) * widen(up[i]);
      result[i] = Rounding<T>::of(value * weight);
    }
    store_vector(y + row * columns + column, result);
  });
}

template <typename T>
struct ExpertGradients {
  const T* dy;
  const T* x;
  const Wide<T>* weights;
  T* dx;
  Wide<T>* dweights;
};

// A block per row, or for several in turn.
template <typename Activation, bool kIsGated, typename T, int kCount>
__global__ void __launch_bounds__(kElementwiseThreads)
    activate_experts_backward(int64_t rows, int64_t columns, ExpertGradients<T> a) {
  using W = Wide<T>;
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const int64_t start = row * columns * (kIsGated ? 2 : 1);
    const W weight = weight_of_row(a.weights, row);
    W dweight = 0;
    for (int64_t column = int64_t{threadIdx.x} * kCount; column < columns; column += int64_t{blockDim.x} * kCount) {
      const auto gate = load_vector<kCount>(a.x + start + column);
      const auto up = kIsGated ? load_vector<kCount>(a.x + start + columns + column) : gate;
      const auto grads = load_vector<kCount>(a.dy + row * columns + column);
      Vector<T, kCount> dgate, dup;
      MEGALITH_UNROLL
      for (int i = 0; i < kCount; ++i) {
        const W grad = widen(grads[i]), weighted = grad * weight;
        const auto [value, slope] = Activation::template at<T>(widen(gate[i]));
        if (kIsGated) {
          const W act = rounded<T>(value);
          dweight += grad * (act * widen(up[i]));
          dgate[i] = Rounding<T>::of(weighted * widen(up[i]) * slope);
          dup[i] = Rounding<T>::of(weighted * act);
        } else {
          dweight += grad * value;
          dgate[i] = Rounding<T>::of(weighted * slope);
        }
      }
      store_vector(a.dx + start + column, dgate);
      if (kIsGated) store_vector(a.dx + start + columns + column, dup);
    }
    if (a.dweights == nullptr) continue;
    dweight = sum_over_block(dweight);
    if (threadIdx.x == 0) a.dweights[row] = dweight;
  }
}

template <typename Body>
void with_activation(const ExpertActivationCall& a, Body&& body) {
  const auto with_gate = [&](auto activation) {
    a.is_gated ? body(activation, std::true_type{}) : body(activation, std::false_type{});
  };
  switch (a.kind) {
    case ActivationKind::kSilu:
      return with_gate(Silu{});
    case ActivationKind::kGelu:
      return with_gate(ErfGelu{});
    case ActivationKind::kGeluTanh:
      return with_gate(TanhGelu{});
    case ActivationKind::kSquaredRelu:
      return with_gate(SquaredRelu{});
    case ActivationKind::kQuickGelu:
    case ActivationKind::kRelu:
      break;  // by the reference
  }
}

// Whole waves of 64.
unsigned threads_for(int64_t vectors) {
  return static_cast<unsigned>(std::clamp<int64_t>((vectors + 63) / 64 * 64, 64, kElementwiseThreads));
}

}  // namespace

void expert_activation(const ExpertActivationCall& a, void* stream) {
  with_activation(a, [&](auto activation, auto is_gated) {
    with_type(a.dtype, [&](auto zero) {
      using T = decltype(zero);
      with_vector_width<T>(are_aligned(a.x, a.y) && is_whole_vectors<T>(a.columns), [&](auto count) {
        launch_vectors("expert_activation", activate_experts<decltype(activation), is_gated(), T, count()>, a.rows,
                       a.columns / count(), stream, a.columns, static_cast<const T*>(a.x),
                       static_cast<const Wide<T>*>(a.weights), static_cast<T*>(a.y));
      });
    });
  });
}

void expert_activation_backward(const ExpertActivationCall& a, void* stream) {
  if (a.rows == 0) return;
  with_activation(a, [&](auto activation, auto is_gated) {
    with_type(a.dtype, [&](auto zero) {
      using T = decltype(zero);
      with_vector_width<T>(are_aligned(a.dy, a.x, a.dx) && is_whole_vectors<T>(a.columns), [&](auto count) {
        const auto blocks = static_cast<unsigned>(std::min<int64_t>(a.rows, kMostBlocks));
        launch("expert_activation_backward", activate_experts_backward<decltype(activation), is_gated(), T, count()>,
               blocks, threads_for(a.columns / count()), 0, static_cast<Stream>(stream), a.rows, a.columns,
               ExpertGradients<T>{.dy = static_cast<const T*>(a.dy),
                                  .x = static_cast<const T*>(a.x),
                                  .weights = static_cast<const Wide<T>*>(a.weights),
                                  .dx = static_cast<T*>(a.dx),
                                  .dweights = static_cast<Wide<T>*>(a.dweights)});
      });
    });
  });
}

}  // namespace megalith::ops::gpu
