// 16 x 16 x 16 products on a chip's matrix units, one per wave: 16-bit numbers, products and sums in float.
//
// Sums += Left Right for Left (m, k) and Right (k, n). Operands are in shared memory, in rows `stride` elements apart,
// starting at a multiple of 32 bytes. Rows run along m or n and follow each other along k (kRowsAreDepth), or run along
// k. Whole waves make each call. kLanes per wave:
//
//   NVIDIA     32   wmma, which hides what a lane holds
//   AMD        64   CDNA's MFMA instruction: a lane holds four neighbours in k of a row, and four sums of a column
//   emulation  64   the code for AMD, with the instruction made of shuffles; 32: a lane computes eight sums of a row
#pragma once

#include "ops/gpu/element.h"

#if !defined(MEGALITH_GPU_EMULATION) && !defined(__HIPCC__)
#include <mma.h>
#endif

namespace megalith::ops::gpu {

inline constexpr int kFragment = 16;           // m, n and k
inline constexpr int kFragmentAlignment = 32;  // bytes

// body(lanes of the device's waves, as a type)
template <typename Body>
void with_lanes(Body&& body) {
#if defined(MEGALITH_GPU_EMULATION)
  if (gpu_emulation::settings().wave_size == 32) return body(std::integral_constant<int, 32>{});
  body(std::integral_constant<int, 64>{});
#elif defined(__HIPCC__)
  body(std::integral_constant<int, 64>{});
#else
  body(std::integral_constant<int, 32>{});
#endif
}

#if !defined(MEGALITH_GPU_EMULATION) && !defined(__HIPCC__)

template <typename T>
struct WmmaType {
  using type = T;
};
template <>
struct WmmaType<BFloat16> {
  using type = __nv_bfloat16;
};

template <typename Use, typename T, bool kIsRowMajor>
struct WmmaOperand {
  using Element = typename WmmaType<T>::type;
  using Layout = std::conditional_t<kIsRowMajor, nvcuda::wmma::row_major, nvcuda::wmma::col_major>;
  nvcuda::wmma::fragment<Use, kFragment, kFragment, kFragment, Element, Layout> fragment;

  __device__ void load(const T* from, int stride) {
    nvcuda::wmma::load_matrix_sync(fragment, reinterpret_cast<const Element*>(from), static_cast<unsigned>(stride));
  }
};
template <typename T, int kLanes, bool kRowsAreDepth>
using LeftFragment = WmmaOperand<nvcuda::wmma::matrix_a, T, !kRowsAreDepth>;
template <typename T, int kLanes, bool kRowsAreDepth>
using RightFragment = WmmaOperand<nvcuda::wmma::matrix_b, T, kRowsAreDepth>;

template <typename T, int kLanes>
struct SumFragment {
  nvcuda::wmma::fragment<nvcuda::wmma::accumulator, kFragment, kFragment, kFragment, float> fragment;

  __device__ void clear() { nvcuda::wmma::fill_fragment(fragment, 0.0f); }
  template <typename Left, typename Right>
  __device__ void add(const Left& left, const Right& right) {
    nvcuda::wmma::mma_sync(fragment, left.fragment, right.fragment, fragment);
  }
  // to[m * 16 + n]; to is a multiple of 32 bytes
  __device__ void store(float* to) const {
    nvcuda::wmma::store_matrix_sync(to, fragment, kFragment, nvcuda::wmma::mem_row_major);
  }
};

#else

// The emulation synchronises a wave here.
__device__ inline void meet() {
#if defined(MEGALITH_GPU_EMULATION)
  vote(true);
#endif
}

// Row or column lane % 16, four of k from 4 (lane / 16) on.
template <typename T>
struct MfmaOperand {
  T values[4];

  template <bool kRowsAreDepth>
  __device__ void load_rows(const T* from, int stride) {
    check_alignment(from, kFragmentAlignment);
    meet();
    const int across = lane() % kFragment, depth = lane() / kFragment * 4;
    MEGALITH_UNROLL
    for (int i = 0; i < 4; ++i) {
      values[i] = from[kRowsAreDepth ? (depth + i) * stride + across : across * stride + depth + i];
    }
  }
};

// sums[i] += the product's element (4 (lane / 16) + i, lane % 16)
template <typename T>
__device__ void mfma([[maybe_unused]] float (&sums)[4], [[maybe_unused]] const MfmaOperand<T>& left,
                     [[maybe_unused]] const MfmaOperand<T>& right) {
#if defined(MEGALITH_GPU_EMULATION)
  for (int quarter = 0; quarter < 4; ++quarter) {
    const auto of_column = shuffle(right, quarter * kFragment + lane() % kFragment);
    for (int i = 0; i < 4; ++i) {
      const auto of_row = shuffle(left, quarter * kFragment + lane() / kFragment * 4 + i);
      for (int k = 0; k < 4; ++k) sums[i] += widen(of_row.values[k]) * widen(of_column.values[k]);
    }
  }
#elif defined(__HIP_DEVICE_COMPILE__)
  using Sums = float __attribute__((ext_vector_type(4)));
  Sums all = {sums[0], sums[1], sums[2], sums[3]};
  if constexpr (std::is_same_v<T, BFloat16>) {
    using Words = short __attribute__((ext_vector_type(4)));
    all = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(__builtin_bit_cast(Words, left), __builtin_bit_cast(Words, right),
                                                    all, 0, 0, 0);
  } else {
    using Halves = _Float16 __attribute__((ext_vector_type(4)));
    all = __builtin_amdgcn_mfma_f32_16x16x16f16(__builtin_bit_cast(Halves, left), __builtin_bit_cast(Halves, right),
                                                all, 0, 0, 0);
  }
  for (int i = 0; i < 4; ++i) sums[i] = all[i];
#endif
}

template <typename T, int kLanes, bool kRowsAreDepth>
struct LeftFragment : MfmaOperand<T> {
  __device__ void load(const T* from, int stride) { this->template load_rows<kRowsAreDepth>(from, stride); }
};
template <typename T, int kLanes, bool kRowsAreDepth>
struct RightFragment : MfmaOperand<T> {
  __device__ void load(const T* from, int stride) { this->template load_rows<kRowsAreDepth>(from, stride); }
};

template <typename T, int kLanes>
struct SumFragment {
  float values[4];

  __device__ void clear() {
    for (float& value : values) value = 0;
  }
  __device__ void add(const MfmaOperand<T>& left, const MfmaOperand<T>& right) { mfma(values, left, right); }
  __device__ void store(float* to) const {
    check_alignment(to, kFragmentAlignment);
    meet();
    for (int i = 0; i < 4; ++i) to[(lane() / kFragment * 4 + i) * kFragment + lane() % kFragment] = values[i];
  }
};

#if defined(MEGALITH_GPU_EMULATION)

// Waves of 32: a lane has row lane % 16 of Left, eight columns of Right and of the sums.
inline constexpr int kColumnsOfLane = 8;

template <typename T, bool kRowsAreDepth>
struct LeftFragment<T, 32, kRowsAreDepth> {
  T values[kFragment];

  void load(const T* from, int stride) {
    check_alignment(from, kFragmentAlignment);
    meet();
    const int row = lane() % kFragment;
    for (int k = 0; k < kFragment; ++k) values[k] = from[kRowsAreDepth ? k * stride + row : row * stride + k];
  }
};
template <typename T, bool kRowsAreDepth>
struct RightFragment<T, 32, kRowsAreDepth> {
  T values[kFragment][kColumnsOfLane];

  void load(const T* from, int stride) {
    check_alignment(from, kFragmentAlignment);
    meet();
    const int first = lane() / kFragment * kColumnsOfLane;
    for (int k = 0; k < kFragment; ++k) {
      for (int i = 0; i < kColumnsOfLane; ++i) {
        values[k][i] = from[kRowsAreDepth ? k * stride + first + i : (first + i) * stride + k];
      }
    }
  }
};
template <typename T>
struct SumFragment<T, 32> {
  float values[kColumnsOfLane];

  void clear() {
    for (float& value : values) value = 0;
  }
  template <typename Left, typename Right>
  void add(const Left& left, const Right& right) {
    meet();
    for (int k = 0; k < kFragment; ++k) {
      const float of_row = widen(left.values[k]);
      for (int i = 0; i < kColumnsOfLane; ++i) values[i] += of_row * widen(right.values[k][i]);
    }
  }
  void store(float* to) const {
    check_alignment(to, kFragmentAlignment);
    meet();
    const int row = lane() % kFragment, first = lane() / kFragment * kColumnsOfLane;
    for (int i = 0; i < kColumnsOfLane; ++i) to[row * kFragment + first + i] = values[i];
  }
};

#endif
#endif

}  // namespace megalith::ops::gpu
