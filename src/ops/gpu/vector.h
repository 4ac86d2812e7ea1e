// Neighbouring elements in one access; 16 bytes are a chip's widest.
#pragma once

#include "ops/gpu/compiler.h"

namespace megalith::ops::gpu {

inline constexpr int kVectorBytes = 16;

template <typename T, int kCount>
struct alignas(sizeof(T) * kCount) Vector {
  static_assert(sizeof(T) * kCount <= kVectorBytes && (kCount & (kCount - 1)) == 0);
  T values[kCount];

  __device__ T& operator[](int i) { return values[i]; }
  __device__ const T& operator[](int i) const { return values[i]; }
};

// True if 16-byte vectors may begin at all of these; null is fine.
template <typename... Pointers>
bool are_aligned(Pointers... pointers) {
  return ((reinterpret_cast<uintptr_t>(pointers) % kVectorBytes == 0) && ...);
}

// from: a multiple of the vector's bytes.
template <int kCount, typename T>
__device__ Vector<T, kCount> load_vector(const T* from) {
  check_alignment(from, sizeof(T) * kCount);
  return *reinterpret_cast<const Vector<T, kCount>*>(from);
}
template <typename T, int kCount>
__device__ void store_vector(T* to, const Vector<T, kCount>& vector) {
  check_alignment(to, sizeof(T) * kCount);
  *reinterpret_cast<Vector<T, kCount>*>(to) = vector;
}

}  // namespace megalith::ops::gpu
