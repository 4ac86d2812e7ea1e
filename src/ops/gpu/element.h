// Elements in kernels, computed wide.
#pragma once

#include "ops/dtype.h"
#include "ops/gpu/compiler.h"

namespace megalith::ops::gpu {

// The same under every compiler and header version.
struct BFloat16 {
  uint16_t bits;
};
using Float16 = __half;

template <typename T>
struct WideOf {
  using type = float;
};
template <>
struct WideOf<double> {
  using type = double;
};
template <typename T>
using Wide = typename WideOf<T>::type;

__device__ inline float widen(BFloat16 value) { return __uint_as_float(static_cast<uint32_t>(value.bits) << 16); }
__device__ inline float widen(Float16 value) { return __half2float(value); }
__device__ inline float widen(float value) { return value; }
__device__ inline double widen(double value) { return value; }

template <typename T>
struct Rounding;  // Rounding<T>::of(wide) is the nearest T
template <>
struct Rounding<float> {
  __device__ static float of(float value) { return value; }
};
template <>
struct Rounding<double> {
  __device__ static double of(double value) { return value; }
};
template <>
struct Rounding<Float16> {
  __device__ static Float16 of(float value) { return __float2half(value); }
};
template <>
struct Rounding<BFloat16> {
  __device__ static BFloat16 of(float value) {
    const uint32_t bits = __float_as_uint(value);
    if (value != value) return {0x7FC0};
    return {static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)};  // to nearest, ties to even
  }
};

// As if stored as T and loaded.
template <typename T>
__device__ inline Wide<T> rounded(Wide<T> value) {
  return widen(Rounding<T>::of(value));
}

template <typename Body>
void with_type(Dtype dtype, Body&& body) {
  switch (dtype) {
    case Dtype::kFloat32:
      return body(float{});
    case Dtype::kFloat64:
      return body(double{});
    case Dtype::kBFloat16:
      return body(BFloat16{});
    case Dtype::kFloat16:
      return body(Float16{});
  }
}

}  // namespace megalith::ops::gpu
