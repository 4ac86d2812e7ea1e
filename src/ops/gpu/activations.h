// Activations and their slopes at x, for inputs and results of type T.
#pragma once

#include "ops/gpu/element.h"

namespace megalith::ops::gpu {

// In 16 bits the chip's own exponential and quotient serve; exact ones would take longer than memory.
template <typename T>
__device__ Wide<T> exp_for(Wide<T> x) {
  if constexpr (sizeof(T) == 2) {
    return __expf(x);
  } else {
    return ::exp(x);
  }
}
// 16 bits: 0 from 2^126 on.
template <typename T>
__device__ Wide<T> reciprocal_for(Wide<T> x) {
  if constexpr (sizeof(T) == 2) {
    return __fdividef(1.0f, x);
  } else {
    return Wide<T>(1) / x;
  }
}

template <typename W>
struct ValueAndSlope {
  W value, slope;
};

struct Silu {
  template <typename T>
  __device__ static ValueAndSlope<Wide<T>> at(Wide<T> x) {
    using W = Wide<T>;
    const W s = reciprocal_for<T>(W(1) + exp_for<T>(-x));
    return {x * s, s * (x * (W(1) - s) + W(1))};
  }
};

// x sigmoid(z) with dz/dx, e = exp(-z). `near` is x, or clamped where sigmoid is 0 or 1, for a finite derivative.
template <typename T>
__device__ ValueAndSlope<Wide<T>> gate_by_sigmoid(Wide<T> x, Wide<T> near, Wide<T> e, Wide<T> dz) {
  using W = Wide<T>;
  constexpr W kMost = sizeof(W) == 8 ? W(1.7976931348623157e308) : W(3.4028234663852886e38);
  const W s = reciprocal_for<T>(W(1) + e);
  // 1 - s without cancellation; where e is infinite s is 0, and any finite factor will do.
  const W rest = (e > kMost ? kMost : e) * s;
  return {x * s, s * (near * dz * rest + W(1))};
}

// NaN stays.
template <typename W>
__device__ W clamped(W x, W limit) {
  return x < -limit ? -limit : x > limit ? limit : x;
}

// (1 + tanh u) / 2 is the logistic function of 2 u, without cancellation.
struct TanhGelu {
  template <typename T>
  __device__ static ValueAndSlope<Wide<T>> at(Wide<T> x) {
    using W = Wide<T>;
    constexpr W kScale = W(1.5957691216057308), kCubic = W(1.5957691216057308 * 0.044715);  // 2 sqrt(2 / pi)
    const W near = clamped(x, W(32)), square = near * near;
    const W z = near * (square * kCubic + kScale);
    return gate_by_sigmoid<T>(x, near, exp_for<T>(-z), square * (3 * kCubic) + kScale);
  }
};

// x times the standard normal distribution at x.
struct ErfGelu {
  template <typename T>
  __device__ static ValueAndSlope<Wide<T>> at(Wide<T> x) {
    using W = Wide<T>;
    const W e = exp_for<T>(x * x * W(-0.5)), density = e * W(0.3989422804014327);  // 1 / sqrt(2 pi)
    const W below = probability_below<T>(x, e);
    return {x * below, x * density + below};
  }

 private:
  static constexpr double kInvSqrt2 = 0.7071067811865476;

  template <typename T>
  __device__ static Wide<T> probability_below(Wide<T> x, Wide<T> e) {
    using W = Wide<T>;
    if constexpr (sizeof(T) != 2) {
      return ::erfc(x * W(-kInvSqrt2)) * W(0.5);  // keeps digits for negative x
    } else {
      // To 8e-8: Abramowitz & Stegun, 7.1.26.
      const float magnitude = x < 0 ? -x : x;
      const float t = reciprocal_for<T>(magnitude * static_cast<float>(0.3275911 * kInvSqrt2) + 1.0f);
      float sum = t * 1.061405429f - 1.453152027f;
      sum = sum * t + 1.421413741f;
      sum = sum * t - 0.284496736f;
      sum = sum * t + 0.254829592f;
      const float tail = sum * t * e * 0.5f;  // beyond |x|, one side
      return x < 0 ? tail : 1.0f - tail;
    }
  }
};

struct SquaredRelu {
  template <typename T>
  __device__ static ValueAndSlope<Wide<T>> at(Wide<T> x) {
    const Wide<T> positive = x <= 0 ? Wide<T>(0) : x;  // NaN stays
    return {positive * positive, positive + positive};
  }
};

}  // namespace megalith::ops::gpu
