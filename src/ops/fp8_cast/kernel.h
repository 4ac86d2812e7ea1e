// Reads x; writes a byte per element, or two with the transpose.
#pragma once

#include <cstdint>

#include "ops/cpu/capability.h"
#include "ops/dtype.h"

namespace megalith::ops {

enum class EightBits { kE4m3fn, kE5m2, kE4m3fnuz, kE5m2fnuz };

// Exponent e and mantissa m mean 2^(e - bias) (1 + m / 2^mantissa_bits), or 2^(1 - bias) m / 2^mantissa_bits if e is 0.
struct EightBitsLayout {
  int mantissa_bits, bias;
  float largest;
  uint32_t nan;
  bool is_fnuz;  // no infinities, no negative zero
};
constexpr EightBitsLayout layout_of(EightBits format) {
  switch (format) {
    case EightBits::kE4m3fn:
      return {3, 7, 448, 0x7F, false};
    case EightBits::kE5m2:
      return {2, 15, 57344, 0x7F, false};
    case EightBits::kE4m3fnuz:
      return {3, 8, 240, 0x80, true};
    case EightBits::kE5m2fnuz:
      return {2, 16, 57344, 0x80, true};
  }
  return {};
}

// Element (row, column) has scales[(row >> row_shift) * scales_of_row + (column >> column_shift)].
struct Fp8CastCall {
  Dtype dtype;
  EightBits format;
  int64_t rows, columns;
  const void* x;
  int64_t x_stride;
  const void* scales;  // wide
  int row_shift, column_shift;
  int64_t scales_of_row;
  uint8_t* values;
  uint8_t* transposed;  // (columns, rows), or null
  void* amax;           // wide, or null; written per task of rows on the CPU, raised on a GPU
  // On a GPU: enough for any chip; each ends with an atomic operation.
  unsigned most_blocks = 4096;
};

// Shifts any index to 0, for blocks of all rows or columns.
inline constexpr int kNoBlocks = 62;

namespace cpu {
inline constexpr int64_t kFp8TaskRows = 64;
MEGALITH_DECLARE_CPU_KERNEL(fp8_cast, (const Fp8CastCall& a));
}  // namespace cpu

namespace gpu {
void fp8_cast(const Fp8CastCall& a, void* stream);
}  // namespace gpu

}  // namespace megalith::ops
