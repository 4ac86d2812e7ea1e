// Tiles of 128 by 128 turn in shared memory: both results are written in runs of 128 bytes.
#include "ops/fp8_cast/kernel.h"
#include "ops/gpu/element.h"
#include "ops/gpu/elementwise.h"
#include "ops/gpu/largest.h"

namespace megalith::ops::gpu {
namespace {

constexpr int kTile = 128, kTileThreads = 256, kRun = 8;  // rows that a thread writes at once

// The significand, shifted to the format's places. Integers: no compiler may contract or flush what decides a tie.
__device__ inline uint8_t eight_bits(const EightBitsLayout& layout, float x) {
  const int least = 128 - layout.bias;  // float exponent of the smallest normal number
  const uint32_t bits = __float_as_uint(x), largest = __float_as_uint(layout.largest);
  const uint32_t given = bits & 0x7FFFFFFF, sign = (bits >> 31) << 7;
  const uint32_t magnitude = given < largest ? given : largest;
  const int above = static_cast<int>(magnitude >> 23) - least, below = above < 0 ? -above : 0;
  const int shift = 23 - layout.mantissa_bits + (below < 9 ? below : 9);  // by 29, all 24 bits give 0
  const uint32_t significand = (magnitude & 0x7FFFFF) | 0x800000;
  const uint32_t half = (1u << (shift - 1)) - 1 + ((significand >> shift) & 1);
  const uint32_t code =
      ((significand + half) >> shift) + (static_cast<uint32_t>(above > 0 ? above : 0) << layout.mantissa_bits);
  const bool is_nan = given > 0x7F800000;
  if (layout.is_fnuz) return static_cast<uint8_t>(is_nan ? layout.nan : code == 0 ? 0 : code | sign);
  return static_cast<uint8_t>((is_nan ? layout.nan : code) | sign);
}

// The product may change a NaN's sign.
template <typename W>
__device__ uint8_t scaled_bits(const EightBitsLayout& layout, W x, W scale) {
  return eight_bits(layout, static_cast<float>(x != x ? x : x * scale));
}

template <typename W>
__device__ W scale_at(const Fp8CastCall& a, int64_t row, int64_t column) {
  return static_cast<const W*>(a.scales)[(row >> a.row_shift) * a.scales_of_row + (column >> a.column_shift)];
}

template <typename T, int kCount>
__device__ Vector<uint8_t, kCount> cast_vector(const Fp8CastCall& a, const EightBitsLayout& layout, int64_t row,
                                               int64_t column, Largest<Wide<T>>& largest) {
  const auto x = load_vector<kCount>(static_cast<const T*>(a.x) + row * a.x_stride + column);
  Vector<uint8_t, kCount> codes;
  MEGALITH_UNROLL
  for (int i = 0; i < kCount; ++i) {
    const Wide<T> value = widen(x[i]);
    largest.take(value);
    codes[i] = scaled_bits(layout, value, scale_at<Wide<T>>(a, row, column + i));
  }
  store_vector(a.values + row * a.columns + column, codes);
  return codes;
}

template <typename T, int kCount>
__global__ void __launch_bounds__(kElementwiseThreads) cast(VectorGrid grid, Fp8CastCall a, EightBitsLayout layout) {
  Largest<Wide<T>> largest;
  for_each_vector(
      grid, [&](int64_t row, int64_t vector) { cast_vector<T, kCount>(a, layout, row, vector * kCount, largest); });
  largest.raise(a.amax);
}

// Groups of four columns are permuted by the group of rows: threads reading one column would conflict in banks.
__device__ inline int place_in_tile(int row, int column) {
  return row * kTile + ((column / 4) ^ (row / kRun)) * 4 + column % 4;
}

template <typename T, int kCount>
__global__ void __launch_bounds__(kTileThreads)
    cast_and_transpose(Fp8CastCall a, EightBitsLayout layout, bool has_runs, unsigned tiles_of_row, unsigned tiles) {
  MEGALITH_SHARED(uint8_t, tile, kTile * kTile);
  const int thread = static_cast<int>(threadIdx.x);
  Largest<Wide<T>> largest;
  for (unsigned t = blockIdx.x; t < tiles; t += gridDim.x) {
    const int64_t first_row = int64_t{t / tiles_of_row} * kTile, first_column = int64_t{t % tiles_of_row} * kTile;
    __syncthreads();  // others may still read the last tile
    for (int vector = thread; vector < kTile * (kTile / kCount); vector += kTileThreads) {
      const int row = vector / (kTile / kCount), column = vector % (kTile / kCount) * kCount;
      if (first_row + row >= a.rows || first_column + column >= a.columns) continue;
      const auto codes = cast_vector<T, kCount>(a, layout, first_row + row, first_column + column, largest);
      MEGALITH_UNROLL
      for (int i = 0; i < kCount; ++i) tile[place_in_tile(row, column + i)] = codes[i];
    }
    __syncthreads();
    for (int run = thread; run < kTile * (kTile / kRun); run += kTileThreads) {
      const int column = run / (kTile / kRun), row = run % (kTile / kRun) * kRun;
      if (first_row + row >= a.rows || first_column + column >= a.columns) continue;
      uint8_t* const to = a.transposed + (first_column + column) * a.rows + first_row + row;
      if (has_runs) {
        Vector<uint8_t, kRun> codes;
        MEGALITH_UNROLL
        for (int i = 0; i < kRun; ++i) codes[i] = tile[place_in_tile(row + i, column)];
        store_vector(to, codes);
      } else {
        for (int i = 0; i < kRun && first_row + row + i < a.rows; ++i) to[i] = tile[place_in_tile(row + i, column)];
      }
    }
  }
  largest.raise(a.amax);
}

template <typename T, int kCount>
void launch_cast(const Fp8CastCall& a, Stream stream) {
  const EightBitsLayout layout = layout_of(a.format);
  if (a.transposed == nullptr) {
    const VectorGrid grid = make_vector_grid(a.rows, a.columns / kCount);
    launch("fp8_cast", cast<T, kCount>, std::min(grid.blocks, a.most_blocks), kElementwiseThreads, 0, stream, grid, a,
           layout);
    return;
  }
  const auto tiles_of_row = static_cast<unsigned>((a.columns + kTile - 1) / kTile);
  const unsigned tiles = static_cast<unsigned>((a.rows + kTile - 1) / kTile) * tiles_of_row;
  const bool has_runs = a.rows % kRun == 0 && are_aligned(a.transposed);
  launch("fp8_cast, transposed", cast_and_transpose<T, kCount>, std::min(tiles, a.most_blocks), kTileThreads, 0, stream,
         a, layout, has_runs, tiles_of_row, tiles);
}

}  // namespace

void fp8_cast(const Fp8CastCall& a, void* stream) {
  if (a.rows == 0 || a.columns == 0) return;
  with_type(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    const bool is_aligned =
        are_aligned(a.x, a.values) && is_whole_vectors<T>(a.columns) && is_whole_vectors<T>(a.x_stride);
    with_vector_width<T>(is_aligned, [&](auto count) { launch_cast<T, count()>(a, static_cast<Stream>(stream)); });
  });
}

}  // namespace megalith::ops::gpu
