// Rounding as kernels store: to nearest, ties to even.
#pragma once

#include "gpu_kernels/array.h"

namespace megalith::testing {

inline double rounded(ops::Dtype dtype, double value) {
  const auto narrow = static_cast<float>(value);
  switch (dtype) {
    case ops::Dtype::kFloat64:
      return value;
    case ops::Dtype::kFloat32:
      return narrow;
    case ops::Dtype::kBFloat16: {
      const auto bits = std::bit_cast<uint32_t>(narrow);
      return narrow != narrow ? narrow : std::bit_cast<float>((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000);
    }
    default:
      return static_cast<_Float16>(narrow);
  }
}

}  // namespace megalith::testing
