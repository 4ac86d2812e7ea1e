// One pass, memory-bound.
#include <ATen/Parallel.h>

#include "ops/cpu/lanes.h"
#include "ops/expert_activation/kernel.h"

namespace megalith::ops::cpu::CPU_CAPABILITY {
namespace {

template <typename T>
struct ActivationLanes {
  Lanes<T> value, slope;
};

// exp_u20's error of up to 20 ulp vanishes in 16 bits.
template <typename T>
Lanes<T> exp_for(const Lanes<T>& x) {
  if constexpr (sizeof(T) == 2)
    return x.exp_u20();
  else
    return x.exp();
}

struct SiluLanes {
  template <typename T>
  static ActivationLanes<T> of(const Lanes<T>& v) {
    const Lanes<T> one(1);
    const Lanes<T> s = one / (one + exp_for<T>(v.neg()));
    return {v * s, s * at::vec::fmadd(v, one - s, one)};
  }
};

struct GeluLanes {
  template <typename T>
  static ActivationLanes<T> of(const Lanes<T>& v) {
    using W = Wide<T>;
    constexpr W kSqrtHalf = W(0.70710678118654752440), kDensity = W(0.39894228040143267794);  // 1 / sqrt(2 pi)
    const Lanes<T> below = Lanes<T>(W(0.5)) * (Lanes<T>(1) + (v * Lanes<T>(kSqrtHalf)).erf());
    const Lanes<T> density = Lanes<T>(kDensity) * exp_for<T>(Lanes<T>(W(-0.5)) * v * v);
    return {v * below, at::vec::fmadd(v, density, below)};
  }
};

// (1 + tanh u) / 2 is the logistic function of 2 u, without cancellation.
struct GeluTanhLanes {
  template <typename T>
  static ActivationLanes<T> of(const Lanes<T>& v) {
    using W = Wide<T>;
    constexpr W kScale = W(1.59576912160573071176), kCubic = W(0.044715);  // 2 sqrt(2 / pi)
    const Lanes<T> one(1), scale(kScale);
    // Beyond ±32 the logistic function is 0 or 1 even in float64; larger cubes could overflow.
    const Lanes<T> near = at::vec::clamp(v, Lanes<T>(W(-32)), Lanes<T>(W(32))), square = near * near;
    const Lanes<T> z = scale * near * at::vec::fmadd(Lanes<T>(kCubic), square, one);
    const Lanes<T> dz = scale * at::vec::fmadd(Lanes<T>(3 * kCubic), square, one);
    const Lanes<T> s = one / (one + exp_for<T>(z.neg()));
    return {v * s, s * at::vec::fmadd(near * dz, one - s, one)};
  }
};

struct SquaredReluLanes {
  template <typename T>
  static ActivationLanes<T> of(const Lanes<T>& v) {
    const Lanes<T> positive = at::vec::maximum(v, Lanes<T>(0));
    return {positive * positive, positive + positive};
  }
};

int64_t activation_rows_per_task(int64_t columns) { return 1 + 8192 / (columns + 1); }

template <typename T>
Lanes<T> weight_of_row(const ExpertActivationCall& a, int64_t row) {
  return Lanes<T>(a.weights == nullptr ? Wide<T>(1) : static_cast<const Wide<T>*>(a.weights)[row]);
}

template <typename T, typename Activation>
void activate_rows(const ExpertActivationCall& a) {
  at::parallel_for(0, a.rows, activation_rows_per_task(a.columns), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* x = static_cast<const T*>(a.x) + row * a.columns * (a.is_gated ? 2 : 1);
      T* y = static_cast<T*>(a.y) + row * a.columns;
      const Lanes<T> weight = weight_of_row<T>(a, row);
      for_each_lanes<T>(a.columns, [&](int64_t c, auto n) {
        Lanes<T> value = Activation::template of<T>(load(x + c, n)).value;
        if (a.is_gated) value = rounded<T>(value) * load(x + a.columns + c, n);
        store(y + c, value * weight, n);
      });
    }
  });
}

// A tail's unused lanes add 0 to dweights.
template <typename T, typename Activation>
void activate_rows_backward(const ExpertActivationCall& a) {
  using W = Wide<T>;
  at::parallel_for(0, a.rows, activation_rows_per_task(a.columns), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t first = row * a.columns * (a.is_gated ? 2 : 1);
      const T* x = static_cast<const T*>(a.x) + first;
      const T* dy = static_cast<const T*>(a.dy) + row * a.columns;
      T* dx = static_cast<T*>(a.dx) + first;
      const Lanes<T> weight = weight_of_row<T>(a, row);
      Lanes<T> dweight(W(0));
      for_each_lanes<T>(a.columns, [&](int64_t c, auto n) {
        const Lanes<T> grad = load(dy + c, n), weighted = grad * weight;
        const auto [value, slope] = Activation::template of<T>(load(x + c, n));
        if (!a.is_gated) {
          dweight = at::vec::fmadd(grad, value, dweight);
          return store(dx + c, weighted * slope, n);
        }
        const Lanes<T> up = load(x + a.columns + c, n), act = rounded<T>(value);
        dweight = at::vec::fmadd(grad, act * up, dweight);
        store(dx + c, weighted * up * slope, n);
        store(dx + a.columns + c, weighted * act, n);
      });
      if (a.dweights != nullptr) static_cast<W*>(a.dweights)[row] = sum_of(dweight);
    }
  });
}

template <typename Body>
void with_activation(ActivationKind kind, Body&& body) {
  switch (kind) {
    case ActivationKind::kSilu:
      return body(SiluLanes{});
    case ActivationKind::kGelu:
      return body(GeluLanes{});
    case ActivationKind::kGeluTanh:
      return body(GeluTanhLanes{});
    case ActivationKind::kSquaredRelu:
      return body(SquaredReluLanes{});
    case ActivationKind::kQuickGelu:
    case ActivationKind::kRelu:
      break;  // by the reference
  }
}

}  // namespace

void expert_activation(const ExpertActivationCall& a) {
  with_activation(a.kind, [&](auto activation) {
    with_type(a.dtype, [&](auto zero) { activate_rows<decltype(zero), decltype(activation)>(a); });
  });
}

void expert_activation_backward(const ExpertActivationCall& a) {
  with_activation(a.kind, [&](auto activation) {
    with_type(a.dtype, [&](auto zero) { activate_rows_backward<decltype(zero), decltype(activation)>(a); });
  });
}

}  // namespace megalith::ops::cpu::CPU_CAPABILITY
