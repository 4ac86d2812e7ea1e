// A thread takes runs of 16 columns and writes 16 codes at once. For the transpose it takes four rows of them, whose
// bytes change places in registers; tiles of 128 by 128 turn in shared memory, four rows of a column a word, and leave
// it in runs of 16 rows.
#include "ops/fp8_cast/kernel.h"
#include "ops/gpu/eight_bits.h"
#include "ops/gpu/element.h"
#include "ops/gpu/elementwise.h"
#include "ops/gpu/largest.h"

namespace megalith::ops::gpu {
namespace {

constexpr int kRun = 16, kWords = kRun / 4;
constexpr int kTile = 128, kTileThreads = 256, kRows = 4;  // of a thread
static_assert(kTileThreads * kRows * kRun == kTile * kTile);

template <bool kIsAligned, typename T>
__device__ void load_run(const T* from, int64_t count, Wide<T> (&x)[kRun]) {
  if constexpr (kIsAligned) {
    constexpr int kOfLoad = kVectorBytes / static_cast<int>(sizeof(T));
    MEGALITH_UNROLL
    for (int i = 0; i < kRun; i += kOfLoad) {
      const auto vector = load_vector<kOfLoad>(from + i);
      MEGALITH_UNROLL
      for (int j = 0; j < kOfLoad; ++j) x[i + j] = widen(vector[j]);
    }
  } else {
    MEGALITH_UNROLL
    for (int i = 0; i < kRun; ++i) x[i] = i < count ? widen(from[i]) : Wide<T>(0);
  }
}

// Returns whether one is NaN.
template <typename W>
__device__ bool take_largest(const W (&x)[kRun], Largest<W>& largest) {
  if constexpr (sizeof(W) == sizeof(float)) {
    uint32_t most = 0;
    MEGALITH_UNROLL
    for (int i = 0; i < kRun; ++i) {
      const uint32_t bits = __float_as_uint(x[i]) & 0x7FFFFFFF;
      most = bits > most ? bits : most;
    }
    largest.take(__uint_as_float(most));
    return most > 0x7F800000;
  } else {
    bool has_nan = false;
    for (int i = 0; i < kRun; ++i) {
      largest.take(x[i]);
      has_nan = has_nan || x[i] != x[i];
    }
    return has_nan;
  }
}

// A run of a row from `column` on, cast and stored. Blocks of columns are one, 128 or all: a run has one scale, or its
// own for each.
template <typename T, bool kIsFnuz, bool kIsAligned>
__device__ void cast_run(const Fp8CastCall& a, const EightBitsLayout& layout, int64_t row, int64_t column,
                         Largest<Wide<T>>& largest, uint32_t (&words)[kWords]) {
  using W = Wide<T>;
  const int64_t count = a.columns - column;
  W x[kRun];
  load_run<kIsAligned>(static_cast<const T*>(a.x) + row * a.x_stride + column, count, x);
  const bool has_nan = take_largest(x, largest);
  const W* const scales = static_cast<const W*>(a.scales) + (row >> a.row_shift) * a.scales_of_row;
  float scaled[kRun];
  if (a.column_shift == 0) {
    MEGALITH_UNROLL
    for (int i = 0; i < kRun; ++i) {
      const W scale = kIsAligned || i < count ? scales[column + i] : W(0);
      scaled[i] = static_cast<float>(x[i] != x[i] ? x[i] : x[i] * scale);  // the product may change a NaN's sign
    }
  } else {
    const W scale = scales[column >> a.column_shift];
    MEGALITH_UNROLL
    for (int i = 0; i < kRun; ++i) scaled[i] = static_cast<float>(x[i] != x[i] ? x[i] : x[i] * scale);
  }
  round_to_eight_bits<kIsFnuz>(layout, scaled, has_nan, words);
  uint8_t* const to = a.values + row * a.columns + column;
  if constexpr (kIsAligned) {
    Vector<uint32_t, kWords> codes;
    MEGALITH_UNROLL
    for (int i = 0; i < kWords; ++i) codes[i] = words[i];
    store_vector(reinterpret_cast<uint32_t*>(to), codes);
  } else {
    MEGALITH_UNROLL
    for (int i = 0; i < kRun; ++i) {
      if (i < count) to[i] = static_cast<uint8_t>(words[i / 4] >> (i % 4 * 8));
    }
  }
}

template <typename T, bool kIsFnuz, bool kIsAligned>
__global__ void __launch_bounds__(kElementwiseThreads) cast(VectorGrid grid, Fp8CastCall a, EightBitsLayout layout) {
  Largest<Wide<T>> largest;
  for_each_vector(grid, [&](int64_t row, int64_t run) {
    uint32_t words[kWords];
    cast_run<T, kIsFnuz, kIsAligned>(a, layout, row, run * kRun, largest, words);
  });
  largest.raise(a.amax);
}

// Columns j of four rows: byte i of words[j] is byte j of rows[i].
__device__ inline void turn(uint32_t (&rows)[kRows]) {
  const uint32_t low01 = __byte_perm(rows[0], rows[1], 0x5140), high01 = __byte_perm(rows[0], rows[1], 0x7362);
  const uint32_t low23 = __byte_perm(rows[2], rows[3], 0x5140), high23 = __byte_perm(rows[2], rows[3], 0x7362);
  rows[0] = __byte_perm(low01, low23, 0x5410);
  rows[1] = __byte_perm(low01, low23, 0x7632);
  rows[2] = __byte_perm(high01, high23, 0x5410);
  rows[3] = __byte_perm(high01, high23, 0x7632);
}

// The word of four rows of a column. The columns of a warp's threads would otherwise meet in few banks; four words of a
// column stay neighbours.
__device__ inline int place_in_tile(int column, int four_rows) {
  return column * (kTile / kRows) + (four_rows ^ column / kRun * kWords);
}

template <typename T, bool kIsFnuz, bool kIsAligned>
__global__ void __launch_bounds__(kTileThreads)
    cast_and_transpose(Fp8CastCall a, EightBitsLayout layout, bool has_runs, unsigned tiles_of_row, unsigned tiles) {
  MEGALITH_SHARED(uint32_t, tile, kTile * kTile / kRows);
  const int thread = static_cast<int>(threadIdx.x);
  Largest<Wide<T>> largest;
  for (unsigned t = blockIdx.x; t < tiles; t += gridDim.x) {
    const int64_t first_row = int64_t{t / tiles_of_row} * kTile, first_column = int64_t{t % tiles_of_row} * kTile;
    __syncthreads();  // others may still read the last tile
    const int four_rows = thread / (kTile / kRun), first_of_run = thread % (kTile / kRun) * kRun;
    uint32_t words[kRows][kWords];
    MEGALITH_UNROLL
    for (int i = 0; i < kRows; ++i) {
      const int64_t row = first_row + four_rows * kRows + i, column = first_column + first_of_run;
      if (row < a.rows && column < a.columns) {
        cast_run<T, kIsFnuz, kIsAligned>(a, layout, row, column, largest, words[i]);
      } else {
        MEGALITH_UNROLL
        for (int j = 0; j < kWords; ++j) words[i][j] = 0;
      }
    }
    MEGALITH_UNROLL
    for (int j = 0; j < kWords; ++j) {
      uint32_t columns[kRows] = {words[0][j], words[1][j], words[2][j], words[3][j]};
      turn(columns);
      MEGALITH_UNROLL
      for (int i = 0; i < 4; ++i) tile[place_in_tile(first_of_run + 4 * j + i, four_rows)] = columns[i];
    }
    __syncthreads();
    for (int run = thread; run < kTile * (kTile / kRun); run += kTileThreads) {
      const int column = run / (kTile / kRun), row = run % (kTile / kRun) * kRun;
      if (first_row + row >= a.rows || first_column + column >= a.columns) continue;
      uint8_t* const to = a.transposed + (first_column + column) * a.rows + first_row + row;
      const auto codes = load_vector<kWords>(tile + place_in_tile(column, row / kRows));
      if (has_runs) {
        store_vector(reinterpret_cast<uint32_t*>(to), codes);
      } else {
        for (int i = 0; i < kRun && first_row + row + i < a.rows; ++i) {
          to[i] = static_cast<uint8_t>(codes[i / 4] >> (i % 4 * 8));
        }
      }
    }
  }
  largest.raise(a.amax);
}

template <typename T, bool kIsFnuz, bool kIsAligned>
void launch_cast(const Fp8CastCall& a, Stream stream) {
  const EightBitsLayout layout = layout_of(a.format);
  if (a.transposed == nullptr) {
    const VectorGrid grid = make_vector_grid(a.rows, (a.columns + kRun - 1) / kRun);
    launch("fp8_cast", cast<T, kIsFnuz, kIsAligned>, std::min(grid.blocks, a.most_blocks), kElementwiseThreads, 0,
           stream, grid, a, layout);
    return;
  }
  const auto tiles_of_row = static_cast<unsigned>((a.columns + kTile - 1) / kTile);
  const unsigned tiles = static_cast<unsigned>((a.rows + kTile - 1) / kTile) * tiles_of_row;
  const bool has_runs = a.rows % kRun == 0 && are_aligned(a.transposed);
  launch("fp8_cast, transposed", cast_and_transpose<T, kIsFnuz, kIsAligned>, std::min(tiles, a.most_blocks),
         kTileThreads, 0, stream, a, layout, has_runs, tiles_of_row, tiles);
}

}  // namespace

void fp8_cast(const Fp8CastCall& a, void* stream) {
  if (a.rows == 0 || a.columns == 0) return;
  with_type(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto with_format = [&](auto is_aligned) {
      constexpr bool kIsAligned = is_aligned();
      const bool is_fnuz = layout_of(a.format).is_fnuz;
      return is_fnuz ? launch_cast<T, true, kIsAligned>(a, static_cast<Stream>(stream))
                     : launch_cast<T, false, kIsAligned>(a, static_cast<Stream>(stream));
    };
    if constexpr (sizeof(T) < sizeof(double)) {
      if (are_aligned(a.x, a.values) && a.columns % kRun == 0 && is_whole_vectors<T>(a.x_stride)) {
        return with_format(std::true_type{});
      }
    }
    with_format(std::false_type{});
  });
}

}  // namespace megalith::ops::gpu
