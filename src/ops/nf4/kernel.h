// Arguments of nf4's kernels. An element of y costs half a byte and a 64th of reads, and its write.
#pragma once

#include <cstdint>

#include "ops/cpu/capability.h"
#include "ops/dtype.h"

namespace megalith::ops {

// bitsandbytes' create_normal_map(), as in its kernels.
struct Nf4Values {
  float of[16] = {-1.0F,
                  -0.6961928009986877F,
                  -0.5250730514526367F,
                  -0.39491748809814453F,
                  -0.28444138169288635F,
                  -0.18477343022823334F,
                  -0.09105003625154495F,
                  0.0F,
                  0.07958029955625534F,
                  0.16093020141124725F,
                  0.24611230194568634F,
                  0.33791524171829224F,
                  0.44070982933044434F,
                  0.5626170039176941F,
                  0.7229568362236023F,
                  1.0F};
};

inline constexpr int kLog2Nf4Block = 6, kLog2Nf4ScaleGroup = 8;

constexpr int64_t nf4_bytes_of_row(int64_t columns) { return (columns + 1) / 2; }
constexpr int64_t nf4_blocks_of_row(int64_t columns) {
  return (columns + (1 << kLog2Nf4Block) - 1) >> kLog2Nf4Block;
}

struct Nf4QuantiseCall {
  Dtype dtype;
  int64_t rows, columns;
  const void* x;
  int64_t x_stride;
  uint8_t* codes;
  float* scales;
};

// All contiguous. Scale b of row r is levels[scales[r, b]] * groups[g, 0] + groups[g, 1] with g = (first_blocks[r] + b)
// / 256.
struct Nf4DequantiseCall {
  Dtype dtype;
  int64_t rows, columns;
  const uint8_t* codes;
  const uint8_t* scales;
  const int32_t* first_blocks;
  const float* groups;
  const float* levels;
  void* y;
};

namespace cpu {
MEGALITH_DECLARE_CPU_KERNEL(nf4_quantise, (const Nf4QuantiseCall& a));
MEGALITH_DECLARE_CPU_KERNEL(nf4_dequantise, (const Nf4DequantiseCall& a));
}  // namespace cpu

namespace gpu {
void nf4_dequantise(const Nf4DequantiseCall& a, void* stream);
}  // namespace gpu

}  // namespace megalith::ops
