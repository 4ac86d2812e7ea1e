// Tiles of 64 by 64: the transpose is written in runs of 64 bytes. Rounding is branch-free integer arithmetic, for
// compilers to vectorise.
#include <ATen/Parallel.h>

#include "ops/cpu/lanes.h"
#include "ops/fp8_cast/kernel.h"

namespace megalith::ops::cpu::CPU_CAPABILITY {
namespace {

constexpr int64_t kTile = kFp8TaskRows;

// The significand, shifted to the format's places.
template <EightBits kFormat>
inline uint8_t eight_bits(float x) {
  constexpr EightBitsLayout kLayout = layout_of(kFormat);
  constexpr int kLeast = 128 - kLayout.bias;  // float exponent of the smallest normal number
  constexpr auto kLargest = __builtin_bit_cast(uint32_t, kLayout.largest);
  const auto bits = __builtin_bit_cast(uint32_t, x);
  const uint32_t given = bits & 0x7FFFFFFF, sign = (bits >> 31) << 7;
  const uint32_t magnitude = given < kLargest ? given : kLargest;
  const int exponent = static_cast<int>(magnitude >> 23), above = exponent - kLeast;
  const int below = above < 0 ? -above : 0;
  const int shift = 23 - kLayout.mantissa_bits + (below < 9 ? below : 9);  // by 29, all 24 bits give 0
  const uint32_t significand = (magnitude & 0x7FFFFF) | 0x800000;
  const uint32_t half = (1u << (shift - 1)) - 1 + ((significand >> shift) & 1);
  const uint32_t rounded = (significand + half) >> shift;
  const uint32_t code = rounded + (static_cast<uint32_t>(above > 0 ? above : 0) << kLayout.mantissa_bits);
  const bool is_nan = given > 0x7F800000;
  if constexpr (kLayout.is_fnuz) {
    return static_cast<uint8_t>(is_nan ? kLayout.nan : code == 0 ? 0 : code | sign);
  } else {
    return static_cast<uint8_t>((is_nan ? kLayout.nan : code) | sign);
  }
}

template <typename W>
struct LargestOf {
  at::vec::Vectorized<W> lanes{W(0)};
  template <typename V>
  void take(const V& x) {
    lanes = at::vec::maximum(lanes, x.abs());
  }
};

template <typename T, EightBits kFormat>
void cast_row(const Fp8CastCall& a, int64_t row, int64_t column, int64_t columns, LargestOf<Wide<T>>& largest,
              uint8_t* codes) {
  const T* x = static_cast<const T*>(a.x) + row * a.x_stride + column;
  const Wide<T>* scales = static_cast<const Wide<T>*>(a.scales) + (row >> a.row_shift) * a.scales_of_row;
  Wide<T> factors[kTile];
  // A tile is within a block of 128 columns.
  for (int64_t i = 0; i < columns; ++i) factors[i] = scales[(column + i) >> a.column_shift];
  float products[kTile] = {};
  for_each_lanes<T>(columns, [&](int64_t i, auto n) {
    const Lanes<T> value = load(x + i, n);
    largest.take(value);
    Wide<T> scaled[kLanes<T>];
    (value * load(factors + i, n)).store(scaled);
    for (int64_t j = 0; j < n; ++j) products[i + j] = static_cast<float>(scaled[j]);
  });
  for (int64_t i = 0; i < kTile; ++i) codes[i] = eight_bits<kFormat>(products[i]);
}

template <typename T, EightBits kFormat>
void cast_rows(const Fp8CastCall& a, int64_t first_row, int64_t rows, LargestOf<Wide<T>>& largest) {
  alignas(64) uint8_t tile[kTile][kTile];
  for (int64_t column = 0; column < a.columns; column += kTile) {
    const int64_t columns = a.columns - column < kTile ? a.columns - column : kTile;
    for (int64_t r = 0; r < rows; ++r) {
      cast_row<T, kFormat>(a, first_row + r, column, columns, largest, tile[r]);
      __builtin_memcpy(a.values + (first_row + r) * a.columns + column, tile[r], static_cast<size_t>(columns));
    }
    if (a.transposed == nullptr) continue;
    for (int64_t c = 0; c < columns; ++c) {
      uint8_t* to = a.transposed + (column + c) * a.rows + first_row;
      for (int64_t r = 0; r < rows; ++r) to[r] = tile[r][c];
    }
  }
}

template <typename T, EightBits kFormat>
void cast_all(const Fp8CastCall& a) {
  at::parallel_for(0, (a.rows + kTile - 1) / kTile, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t first_row = task * kTile, left = a.rows - first_row;
      LargestOf<Wide<T>> largest;
      cast_rows<T, kFormat>(a, first_row, left < kTile ? left : kTile, largest);
      if (a.amax != nullptr) static_cast<Wide<T>*>(a.amax)[task] = max_of(largest.lanes);
    }
  });
}

}  // namespace

void fp8_cast(const Fp8CastCall& a) {
  with_type(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    switch (a.format) {
      case EightBits::kE4m3fn:
        return cast_all<T, EightBits::kE4m3fn>(a);
      case EightBits::kE5m2:
        return cast_all<T, EightBits::kE5m2>(a);
      case EightBits::kE4m3fnuz:
        return cast_all<T, EightBits::kE4m3fnuz>(a);
      case EightBits::kE5m2fnuz:
        return cast_all<T, EightBits::kE5m2fnuz>(a);
    }
  });
}

}  // namespace megalith::ops::cpu::CPU_CAPABILITY
