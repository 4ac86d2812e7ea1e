// One pass, memory-bound if the exponential keeps up.
#include <ATen/Parallel.h>

#include "ops/cpu/lanes.h"
#include "ops/swiglu/kernel.h"

namespace megalith::ops::cpu::CPU_CAPABILITY {
namespace {

int64_t swiglu_rows_per_task(int64_t columns) { return 1 + 8192 / (columns + 1); }

// The logistic function's reciprocal.
template <typename T>
Lanes<T> one_plus_exp_of_negative(const Lanes<T>& x) {
  // 16-bit results hide its error of up to 20 ulp.
  if constexpr (sizeof(T) == 2) {
    return Lanes<T>(1) + x.neg().exp_u20();
  } else {
    return Lanes<T>(1) + x.neg().exp();
  }
}

template <typename T>
void forward(const SwigluForward& a) {
  at::parallel_for(0, a.rows, swiglu_rows_per_task(a.columns), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* gate = static_cast<const T*>(a.gate_up) + row * 2 * a.columns;
      const T* up = gate + a.columns;
      T* y = static_cast<T*>(a.y) + row * a.columns;
      for_each_lanes<T>(a.columns, [&](int64_t i, auto count) {
        const Lanes<T> g = load(gate + i, count);
        const Lanes<T> silu = rounded<T>(g / one_plus_exp_of_negative<T>(g));
        store(y + i, silu * load(up + i, count), count);
      });
    }
  });
}

// s = logistic(gate):  dgate = dy up s (1 + gate (1 - s)),  dup = dy silu(gate).
template <typename T>
void backward(const SwigluBackward& a) {
  at::parallel_for(0, a.rows, swiglu_rows_per_task(a.columns), [&](int64_t begin, int64_t end) {
    const Lanes<T> one(1);
    for (int64_t row = begin; row < end; ++row) {
      const T* gate = static_cast<const T*>(a.gate_up) + row * 2 * a.columns;
      const T* up = gate + a.columns;
      const T* dy = static_cast<const T*>(a.dy) + row * a.columns;
      T* dgate = static_cast<T*>(a.dgate_up) + row * 2 * a.columns;
      T* dup = dgate + a.columns;
      for_each_lanes<T>(a.columns, [&](int64_t i, auto count) {
        const Lanes<T> g = load(gate + i, count), grad = load(dy + i, count);
        const Lanes<T> s = one / one_plus_exp_of_negative<T>(g);
        store(dup + i, grad * rounded<T>(g * s), count);
        store(dgate + i, grad * load(up + i, count) * s * at::vec::fmadd(g, one - s, one), count);
      });
    }
  });
}

}  // namespace

void swiglu(const SwigluForward& a) {
  with_type(a.dtype, [&](auto zero) { forward<decltype(zero)>(a); });
}

void swiglu_backward(const SwigluBackward& a) {
  with_type(a.dtype, [&](auto zero) { backward<decltype(zero)>(a); });
}

}  // namespace megalith::ops::cpu::CPU_CAPABILITY
