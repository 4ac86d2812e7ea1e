// A block's tile of C (m, n) = A (m, k) B (k, n), of any strides and sizes: 16-bit numbers on the matrix units, others
// by multiply-add; wide sums in order of k, reproducible to the bit.
//
// Pieces of A and B, kDepth of k, are in shared memory, rows as on the device. While one is multiplied, the next is
// loaded into registers. Beyond m, n and k there are zeros.
#pragma once

#include "ops/gpu/matrix_fragment.h"
#include "ops/gpu/sync_wave.h"
#include "ops/gpu/vector.h"

namespace megalith::ops::gpu {

inline constexpr int kTileThreads = 256;

template <typename T>
inline constexpr bool kHasFragments = sizeof(T) == 2;
template <typename T>
inline constexpr int kTile = kHasFragments<T> ? 128 : 64;  // rows and columns of C
template <typename T>
inline constexpr int kTileDepth = kHasFragments<T> ? 32 : 16;

// Rows along m or n, one after another along k (kRowsAreDepth), or along k.
template <typename T>
struct Operand {
  const T* data;
  int64_t stride;
  bool is_aligned;  // rows begin at, and are multiples of, 16 bytes

  static Operand of(const void* data, int64_t stride, int64_t length) {
    constexpr int64_t kWidth = kVectorBytes / static_cast<int64_t>(sizeof(T));
    return {static_cast<const T*>(data), stride, are_aligned(data) && stride % kWidth == 0 && length % kWidth == 0};
  }
};

// kMajor rows of kMinor elements, on their way through registers.
template <typename T, int kMajor, int kMinor>
class Piece {
 public:
  static constexpr int kWidth = kVectorBytes / static_cast<int>(sizeof(T)), kInRow = kMinor / kWidth;
  // 16 bytes of padding put neighbours in different banks.
  static constexpr int kStride = kMinor + kWidth, kSize = kMajor * kStride;

  // majors, minors: the operand's extent from `from` on.
  __device__ void fetch(const T* from, int64_t stride, int64_t majors, int64_t minors, bool is_aligned) {
    MEGALITH_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      const int place = i * kTileThreads + static_cast<int>(threadIdx.x);
      const int major = place / kInRow, minor = place % kInRow * kWidth;
      const T* row = from + major * stride + minor;
      if (is_aligned && major < majors && minor < minors) {
        vectors_[i] = load_vector<kWidth>(row);
        continue;
      }
      MEGALITH_UNROLL
      for (int e = 0; e < kWidth; ++e) {
        vectors_[i][e] = major < majors && minor + e < minors ? row[e] : Rounding<T>::of(0);
      }
    }
  }
  __device__ void put(T* shared) const {
    MEGALITH_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      const int place = i * kTileThreads + static_cast<int>(threadIdx.x);
      store_vector(shared + place / kInRow * kStride + place % kInRow * kWidth, vectors_[i]);
    }
  }

 private:
  static constexpr int kVectors = kMajor * kInRow / kTileThreads;
  static_assert(kVectors * kTileThreads == kMajor * kInRow);
  Vector<T, kWidth> vectors_[kVectors];
};
template <typename T, bool kRowsAreDepth>
using PieceOf = Piece<T, kRowsAreDepth ? kTileDepth<T> : kTile<T>, kRowsAreDepth ? kTile<T> : kTileDepth<T>>;

// Fragments of 16 x 16: a wave has four times kAcross, side by side.
template <typename T, int kLanes, bool kLeftIsDepth, bool kRightIsDepth>
class FragmentSums {
 public:
  __device__ FragmentSums(int64_t rows, int64_t columns) : rows_(rows), columns_(columns) {
    MEGALITH_UNROLL
    for (int i = 0; i < kDown * kAcross; ++i) sums_[i].clear();
  }

  __device__ void add(const T* left, const T* right) {
    MEGALITH_UNROLL
    for (int k = 0; k < kTileDepth<T>; k += kFragment) {
      RightFragment<T, kLanes, kRightIsDepth> of_columns[kAcross];
      MEGALITH_UNROLL
      for (int j = 0; j < kAcross; ++j) {
        of_columns[j].load(right + element<kRightIsDepth>(column_of(j), k), PieceOf<T, kRightIsDepth>::kStride);
      }
      MEGALITH_UNROLL
      for (int i = 0; i < kDown; ++i) {
        if (row_of(i) >= rows_) continue;  // only zeros
        LeftFragment<T, kLanes, kLeftIsDepth> of_rows;
        of_rows.load(left + element<kLeftIsDepth>(row_of(i), k), PieceOf<T, kLeftIsDepth>::kStride);
        MEGALITH_UNROLL
        for (int j = 0; j < kAcross; ++j) {
          if (column_of(j) < columns_) sums_[i * kAcross + j].add(of_rows, of_columns[j]);
        }
      }
    }
  }

  template <typename Write>
  __device__ void write(Write&& write) const {
    MEGALITH_SHARED(float, shared, kWaves* kFragment* kFragment + kFragmentAlignment / 4);
    float* const mine = align_fragment(shared) + wave() * kFragment * kFragment;
    MEGALITH_UNROLL
    for (int i = 0; i < kDown * kAcross; ++i) {
      sums_[i].store(mine);
      sync_wave();  // written by all lanes
      const int row = row_of(i / kAcross), column = column_of(i % kAcross);
      for (int e = lane(); e < kFragment * kFragment; e += kLanes) {
        write(row + e / kFragment, column + e % kFragment, mine[e]);
      }
      sync_wave();  // for the next fragment, on chips whose store does not begin with one
    }
  }

  // Shared arrays begin at multiples of only 16 bytes.
  template <typename E>
  __device__ static E* align_fragment(E* shared) {
    const auto address = reinterpret_cast<uintptr_t>(shared);
    return shared + (kFragmentAlignment - address % kFragmentAlignment) % kFragmentAlignment / sizeof(E);
  }

 private:
  static constexpr int kWaves = kTileThreads / kLanes, kDown = 4;
  static constexpr int kWavesAcross = kWaves / 2, kAcross = kTile<T> / kFragment / kWavesAcross;
  static_assert(2 * kDown * kFragment == kTile<T>);

  __device__ static int row_of(int i) { return (wave() / kWavesAcross * kDown + i) * kFragment; }
  __device__ static int column_of(int j) { return (wave() % kWavesAcross * kAcross + j) * kFragment; }
  // `across`: along m or n.
  template <bool kRowsAreDepth>
  __device__ static int element(int across, int depth) {
    constexpr int kStride = PieceOf<T, kRowsAreDepth>::kStride;
    return kRowsAreDepth ? depth * kStride + across : across * kStride + depth;
  }

  int64_t rows_, columns_;  // of C from this tile on
  SumFragment<T, kLanes> sums_[kDown * kAcross];
};

// 4 x 4 of each thread, 16 apart.
template <typename T, bool kLeftIsDepth, bool kRightIsDepth>
class PlainSums {
 public:
  __device__ PlainSums(int64_t /*rows*/, int64_t /*columns*/) {}

  __device__ void add(const T* left, const T* right) {
    constexpr int kLeftStride = PieceOf<T, kLeftIsDepth>::kStride, kRightStride = PieceOf<T, kRightIsDepth>::kStride;
    MEGALITH_UNROLL_BY(4)
    for (int k = 0; k < kTileDepth<T>; ++k) {
      T of_rows[kCount], of_columns[kCount];
      MEGALITH_UNROLL
      for (int i = 0; i < kCount; ++i) {
        const int row = first_row() + i * kApart, column = first_column() + i * kApart;
        of_rows[i] = left[kLeftIsDepth ? k * kLeftStride + row : row * kLeftStride + k];
        of_columns[i] = right[kRightIsDepth ? k * kRightStride + column : column * kRightStride + k];
      }
      MEGALITH_UNROLL
      for (int i = 0; i < kCount; ++i) {
        MEGALITH_UNROLL
        for (int j = 0; j < kCount; ++j) sums_[i][j] += of_rows[i] * of_columns[j];
      }
    }
  }
  template <typename Write>
  __device__ void write(Write&& write) const {
    MEGALITH_UNROLL
    for (int i = 0; i < kCount; ++i) {
      MEGALITH_UNROLL
      for (int j = 0; j < kCount; ++j) write(first_row() + i * kApart, first_column() + j * kApart, sums_[i][j]);
    }
  }
  template <typename E>
  __device__ static E* align_fragment(E* shared) {
    return shared;
  }

 private:
  static constexpr int kApart = 16, kCount = kTile<T> / kApart;
  static_assert(kApart * kApart == kTileThreads);
  __device__ static int first_row() { return static_cast<int>(threadIdx.x) / kApart; }
  __device__ static int first_column() { return static_cast<int>(threadIdx.x) % kApart; }

  T sums_[kCount][kCount] = {};
};

// Calls write(row, column, sum) for the tile at (first_row, first_column).
template <int kLanes, bool kLeftIsDepth, bool kRightIsDepth, typename T, typename Write>
__device__ void multiply_tile(const Operand<T>& a, const Operand<T>& b, int64_t m, int64_t n, int64_t k,
                              int64_t first_row, int64_t first_column, Write&& write) {
  using Left = PieceOf<T, kLeftIsDepth>;
  using Right = PieceOf<T, kRightIsDepth>;
  using Sums = std::conditional_t<kHasFragments<T>, FragmentSums<T, kLanes, kLeftIsDepth, kRightIsDepth>,
                                  PlainSums<T, kLeftIsDepth, kRightIsDepth>>;
  constexpr int kSpare = kFragmentAlignment / static_cast<int>(sizeof(T));
  MEGALITH_SHARED(T, left_memory, Left::kSize + kSpare);
  MEGALITH_SHARED(T, right_memory, Right::kSize + kSpare);
  T *const left = Sums::align_fragment(left_memory), *const right = Sums::align_fragment(right_memory);
  const int64_t rows = m - first_row, columns = n - first_column;
  Left of_a;
  Right of_b;
  const auto fetch = [&](int64_t depth) {
    if constexpr (kLeftIsDepth)
      of_a.fetch(a.data + depth * a.stride + first_row, a.stride, k - depth, rows, a.is_aligned);
    else
      of_a.fetch(a.data + first_row * a.stride + depth, a.stride, rows, k - depth, a.is_aligned);
    if constexpr (kRightIsDepth)
      of_b.fetch(b.data + depth * b.stride + first_column, b.stride, k - depth, columns, b.is_aligned);
    else
      of_b.fetch(b.data + first_column * b.stride + depth, b.stride, columns, k - depth, b.is_aligned);
  };
  Sums sums(rows, columns);
  if (k > 0) fetch(0);
  for (int64_t depth = 0; depth < k; depth += kTileDepth<T>) {
    of_a.put(left);
    of_b.put(right);
    __syncthreads();
    if (depth + kTileDepth<T> < k) fetch(depth + kTileDepth<T>);
    sums.add(left, right);
    __syncthreads();  // for the next pieces
  }
  sums.write([&](int row, int column, Wide<T> sum) {
    if (row < rows && column < columns) write(first_row + row, first_column + column, sum);
  });
}

}  // namespace megalith::ops::gpu
