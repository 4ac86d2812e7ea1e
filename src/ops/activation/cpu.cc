// One pass, memory-bound.
#include <ATen/Parallel.h>

#include <limits>

#include "ops/activation/kernel.h"
#include "ops/cpu/lanes.h"

namespace megalith::ops::cpu::CPU_CAPABILITY {
namespace {

int64_t gelu_rows_per_task(int64_t columns) { return 1 + 8192 / (columns + 1); }

template <typename T>
Lanes<T> gelu_exp(const Lanes<T>& x) {
  // exp_u20's error of up to 20 ulp vanishes in 16 bits.
  if constexpr (sizeof(T) == 2) {
    return x.exp_u20();
  } else {
    return x.exp();
  }
}

template <typename T>
struct ValueAndSlope {
  Lanes<T> value, slope;
};

// x sigmoid(z) with dz/dx, e = exp(-z). `near` is x, or clamped where sigmoid is 0 or 1, for a finite derivative.
template <typename T>
ValueAndSlope<T> gate_by_sigmoid(const Lanes<T>& x, const Lanes<T>& near, const Lanes<T>& e, const Lanes<T>& dz) {
  const Lanes<T> one(1), s = one / (one + e);
  // 1 - s without cancellation; where e is infinite s is 0, and any finite factor will do.
  const Lanes<T> rest = at::vec::clamp_max(e, Lanes<T>(std::numeric_limits<Wide<T>>::max())) * s;
  return {x * s, s * at::vec::fmadd(near * dz, rest, one)};
}

// (1 + tanh u) / 2 is the logistic function of 2 u, without cancellation.
struct TanhGelu {
  static constexpr double kScale = 1.5957691216057308;  // 2 sqrt(2 / pi)
  static constexpr double kCubic = kScale * 0.044715;

  template <typename T>
  static Lanes<T> value(const Lanes<T>& x) {
    using W = Wide<T>;
    const Lanes<T> per_x = at::vec::fmadd(x * x, Lanes<T>(static_cast<W>(kCubic)), Lanes<T>(static_cast<W>(kScale)));
    return x / (Lanes<T>(1) + gelu_exp<T>((x * per_x).neg()));
  }

  template <typename T>
  static ValueAndSlope<T> value_and_slope(const Lanes<T>& x) {
    using W = Wide<T>;
    const Lanes<T> near = at::vec::clamp(x, Lanes<T>(-32), Lanes<T>(32)), square = near * near;
    const Lanes<T> scale(static_cast<W>(kScale));
    const Lanes<T> z = near * at::vec::fmadd(square, Lanes<T>(static_cast<W>(kCubic)), scale);
    const Lanes<T> dz = at::vec::fmadd(square, Lanes<T>(static_cast<W>(3 * kCubic)), scale);
    return gate_by_sigmoid<T>(x, near, gelu_exp<T>(z.neg()), dz);
  }
};

struct ErfGelu {
  static constexpr double kInvSqrt2 = 0.7071067811865476;
  static constexpr double kInvSqrt2Pi = 0.3989422804014327;

  template <typename T>
  static Lanes<T> value(const Lanes<T>& x) {
    if constexpr (sizeof(T) == 2) {
      return x * below_by_exp<T>(x, exp_of_half_square<T>(x));
    } else {
      return x * below<T>(x);
    }
  }

  template <typename T>
  static ValueAndSlope<T> value_and_slope(const Lanes<T>& x) {
    const Lanes<T> e = exp_of_half_square<T>(x);
    Lanes<T> probability;
    if constexpr (sizeof(T) == 2) {
      probability = below_by_exp<T>(x, e);
    } else {
      probability = below<T>(x);
    }
    const Lanes<T> density = e * Lanes<T>(static_cast<Wide<T>>(kInvSqrt2Pi));
    return {x * probability, at::vec::fmadd(x, density, probability)};
  }

 private:
  template <typename T>
  static Lanes<T> exp_of_half_square(const Lanes<T>& x) {
    return gelu_exp<T>(x * x * Lanes<T>(Wide<T>(-0.5)));
  }

  // Standard normal distribution; erfc keeps digits for negative x.
  template <typename T>
  static Lanes<T> below(const Lanes<T>& x) {
    return (x * Lanes<T>(static_cast<Wide<T>>(-kInvSqrt2))).erfc() * Lanes<T>(Wide<T>(0.5));
  }

  // To 8e-8, from e = exp(-x^2 / 2): Abramowitz & Stegun, 7.1.26.
  template <typename T>
  static Lanes<T> below_by_exp(const Lanes<T>& x, const Lanes<T>& e) {
    using at::vec::fmadd;
    using L = Lanes<T>;
    const L t = L(1) / fmadd(x.abs(), L(static_cast<Wide<T>>(0.3275911 * kInvSqrt2)), L(1));
    L sum = fmadd(t, L(1.061405429f), L(-1.453152027f));
    sum = fmadd(sum, t, L(1.421413741f));
    sum = fmadd(sum, t, L(-0.284496736f));
    sum = fmadd(sum, t, L(0.254829592f));
    const L tail = sum * t * e * L(0.5f);  // beyond |x|, one side
    return L::blendv(L(1) - tail, tail, x < L(0));
  }
};

struct SquaredRelu {
  template <typename T>
  static Lanes<T> value(const Lanes<T>& x) {
    const Lanes<T> positive = at::vec::maximum(x, Lanes<T>(0));
    return positive * positive;
  }

  template <typename T>
  static ValueAndSlope<T> value_and_slope(const Lanes<T>& x) {
    const Lanes<T> positive = at::vec::maximum(x, Lanes<T>(0));
    return {positive * positive, positive + positive};
  }
};

// Visits rows on all threads, with a zero of their type.
template <typename Visit>
void for_each_row(const ActivationCall& a, Visit&& visit) {
  with_type(a.dtype, [&](auto zero) {
    at::parallel_for(0, a.rows, gelu_rows_per_task(a.columns), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) visit(zero, row);
    });
  });
}

template <typename Activation>
void activate(const ActivationCall& a) {
  for_each_row(a, [&](auto zero, int64_t row) {
    using T = decltype(zero);
    const T* x = static_cast<const T*>(a.x) + row * a.columns;
    T* y = static_cast<T*>(a.y) + row * a.columns;
    for_each_lanes<T>(a.columns, [&](int64_t i, auto count) {
      store(y + i, Activation::template value<T>(load(x + i, count)), count);
    });
  });
}

template <typename Activation>
void activate_backward(const ActivationCall& a) {
  for_each_row(a, [&](auto zero, int64_t row) {
    using T = decltype(zero);
    const T* x = static_cast<const T*>(a.x) + row * a.columns;
    const T* dy = static_cast<const T*>(a.dy) + row * a.columns;
    T* dx = static_cast<T*>(a.dx) + row * a.columns;
    for_each_lanes<T>(a.columns, [&](int64_t i, auto count) {
      const Lanes<T> slope = Activation::template value_and_slope<T>(load(x + i, count)).slope;
      store(dx + i, load(dy + i, count) * slope, count);
    });
  });
}

template <typename Activation>
void gate(const ActivationCall& a) {
  for_each_row(a, [&](auto zero, int64_t row) {
    using T = decltype(zero);
    const T* gate = static_cast<const T*>(a.x) + row * 2 * a.columns;
    const T* up = gate + a.columns;
    T* y = static_cast<T*>(a.y) + row * a.columns;
    for_each_lanes<T>(a.columns, [&](int64_t i, auto count) {
      const Lanes<T> value = rounded<T>(Activation::template value<T>(load(gate + i, count)));
      store(y + i, value * load(up + i, count), count);
    });
  });
}

template <typename Activation>
void gate_backward(const ActivationCall& a) {
  for_each_row(a, [&](auto zero, int64_t row) {
    using T = decltype(zero);
    const T* gate = static_cast<const T*>(a.x) + row * 2 * a.columns;
    const T* up = gate + a.columns;
    const T* dy = static_cast<const T*>(a.dy) + row * a.columns;
    T* dgate = static_cast<T*>(a.dx) + row * 2 * a.columns;
    T* dup = dgate + a.columns;
    for_each_lanes<T>(a.columns, [&](int64_t i, auto count) {
      const Lanes<T> grad = load(dy + i, count);
      const auto [value, slope] = Activation::template value_and_slope<T>(load(gate + i, count));
      store(dup + i, grad * rounded<T>(value), count);
      store(dgate + i, grad * load(up + i, count) * slope, count);
    });
  });
}

// Runs body with an object of a form of GELU.
template <typename Body>
void with_gelu(ActivationKind kind, Body&& body) {
  kind == ActivationKind::kGelu ? body(ErfGelu{}) : body(TanhGelu{});
}

}  // namespace

void activation(const ActivationCall& a) {
  if (a.kind == ActivationKind::kSquaredRelu) return activate<SquaredRelu>(a);
  with_gelu(a.kind, [&](auto gelu) { a.is_gated ? gate<decltype(gelu)>(a) : activate<decltype(gelu)>(a); });
}

void activation_backward(const ActivationCall& a) {
  if (a.kind == ActivationKind::kSquaredRelu) return activate_backward<SquaredRelu>(a);
  with_gelu(a.kind,
            [&](auto gelu) { a.is_gated ? gate_backward<decltype(gelu)>(a) : activate_backward<decltype(gelu)>(a); });
}

}  // namespace megalith::ops::cpu::CPU_CAPABILITY
