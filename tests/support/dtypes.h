// The floating dtypes of operators and how finely each divides numbers, for tolerances.
#pragma once

#include <ATen/ATen.h>

namespace megalith::testing {

inline constexpr at::ScalarType kFloatingDtypes[] = {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf};

// Distance of 1 to the next number. One rounding changes a value by at most half of it, relatively.
inline double unit_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBFloat16:
      return 0x1p-7;
    case at::kHalf:
      return 0x1p-10;
    case at::kFloat:
      return 0x1p-23;
    default:
      return 0x1p-52;
  }
}

// Distance of two neighbours close to 0, which a rounding cannot go below: only fp16's is large enough to matter.
inline double smallest_step_of(at::ScalarType dtype) { return dtype == at::kHalf ? 0x1p-24 : 0; }

}  // namespace megalith::testing
