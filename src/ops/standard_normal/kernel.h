// Normal deviates of core/philox.h in lanes, nearly: enough for all but the few values whose rounding they leave open.
#pragma once

#include <cstdint>

#include "ops/cpu/capability.h"

namespace megalith::ops {

constexpr int kNormalBlocks = 16;  // of four values

// Times |value|. Logarithm, sine and cosine err by 2^-52 at most, here and in the definition.
constexpr double kNormalError = 0x1p-40;

namespace cpu {
// out (4 · kNormalBlocks): about normal_at(key, 4 · block), normal_at(key, 4 · block + 1), …
MEGALITH_DECLARE_CPU_KERNEL(approximate_normals, (uint64_t key, uint64_t block, double* out));
}  // namespace cpu

}  // namespace megalith::ops
