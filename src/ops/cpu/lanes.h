// Registers of elements for kernel files: float lanes (double for fp64), rounded once when stored.
#pragma once

#include <ATen/cpu/vec/vec.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstdint>
#include <type_traits>

#include "ops/dtype.h"

namespace megalith::ops::cpu::CPU_CAPABILITY {

template <typename T>
using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <typename T>
using Lanes = at::vec::Vectorized<Wide<T>>;

template <typename T>
inline constexpr int64_t kLanes = Lanes<T>::size();

// A full register's size, as a type that picks the load without a tail.
template <typename T>
using FullCount = std::integral_constant<int64_t, kLanes<T>>;

template <typename T>
inline Lanes<T> load(const T* p, FullCount<T>) {
  if constexpr (std::is_same_v<T, Wide<T>>) {
    return Lanes<T>::loadu(p);
  } else {
#if defined(CPU_CAPABILITY_AVX512)
    __m512 values;
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    at::vec::cvt_to_fp32<T>(bits, values);
    return values;
#elif defined(CPU_CAPABILITY_AVX2)
    __m256 values;
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    at::vec::cvt_to_fp32<T>(bits, values);
    return values;
#else
    float values[kLanes<T>];
    for (int64_t i = 0; i < kLanes<T>; ++i) values[i] = static_cast<float>(p[i]);
    return Lanes<T>::loadu(values);
#endif
  }
}

template <typename T>
inline void store(T* p, const Lanes<T>& lanes, FullCount<T>) {
  if constexpr (std::is_same_v<T, Wide<T>>) {
    lanes.store(p);
  } else {
#if defined(CPU_CAPABILITY_AVX512)
    __m256i bits;
    if constexpr (std::is_same_v<T, c10::BFloat16>) {
      bits = at::vec::cvtfp32_bf16(__m512(lanes));
    } else {
      bits = at::vec::cvtfp32_fp16(__m512(lanes));
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), bits);
#elif defined(CPU_CAPABILITY_AVX2)
    __m128i bits;
    if constexpr (std::is_same_v<T, c10::BFloat16>) {
      bits = at::vec::cvtfp32_bf16(__m256(lanes));
    } else {
      bits = at::vec::cvtfp32_fp16(__m256(lanes));
    }
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bits);
#else
    float values[kLanes<T>];
    lanes.store(values);
    for (int64_t i = 0; i < kLanes<T>; ++i) p[i] = static_cast<T>(values[i]);
#endif
  }
}

// `count` elements; other lanes are 0.
template <typename T>
inline Lanes<T> load(const T* p, int64_t count) {
  T values[kLanes<T>] = {};
  for (int64_t i = 0; i < count; ++i) values[i] = p[i];
  return load(values, FullCount<T>{});
}

template <typename T>
inline void store(T* p, const Lanes<T>& lanes, int64_t count) {
  T values[kLanes<T>];
  store(values, lanes, FullCount<T>{});
  for (int64_t i = 0; i < count; ++i) p[i] = values[i];
}

// As if stored as T and loaded.
template <typename T>
inline Lanes<T> rounded(const Lanes<T>& lanes) {
  if constexpr (std::is_same_v<T, Wide<T>>) {
    return lanes;
  } else {
    T values[kLanes<T>];
    store(values, lanes, FullCount<T>{});
    return load(values, FullCount<T>{});
  }
}

// body(first, count) per register; count is FullCount<T>, or the tail's size.
template <typename T, typename Body>
inline void for_each_lanes(int64_t size, Body&& body) {
  int64_t i = 0;
  for (; i + kLanes<T> <= size; i += kLanes<T>) body(i, FullCount<T>{});
  if (i < size) body(i, size - i);
}

template <typename T>
inline T sum_of(const at::vec::Vectorized<T>& lanes) {
  T values[at::vec::Vectorized<T>::size()];
  lanes.store(values);
  for (int64_t width = at::vec::Vectorized<T>::size() / 2; width > 0; width /= 2) {
    for (int64_t i = 0; i < width; ++i) values[i] += values[i + width];
  }
  return values[0];
}

// NaN if any lane is.
template <typename T>
inline T max_of(const at::vec::Vectorized<T>& lanes) {
  T values[at::vec::Vectorized<T>::size()];
  lanes.store(values);
  for (int64_t width = at::vec::Vectorized<T>::size() / 2; width > 0; width /= 2) {
    for (int64_t i = 0; i < width; ++i) {
      const T a = values[i], b = values[i + width];
      values[i] = (a > b) | (a != a) ? a : b;
    }
  }
  return values[0];
}

template <typename Body>
inline void with_type(Dtype dtype, Body&& body) {
  switch (dtype) {
    case Dtype::kFloat32:
      return body(float{});
    case Dtype::kFloat64:
      return body(double{});
    case Dtype::kBFloat16:
      return body(c10::BFloat16{});
    case Dtype::kFloat16:
      return body(c10::Half{});
  }
}

}  // namespace megalith::ops::cpu::CPU_CAPABILITY
