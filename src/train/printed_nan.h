// A NaN in logs and metrics.
#pragma once

#include <cmath>
#include <limits>

namespace megalith {

// x86's default NaN is negative, and "-nan" in a log looks different from "nan".
inline double without_nan_sign(double value) {
  return std::isnan(value) ? std::numeric_limits<double>::quiet_NaN() : value;
}

}  // namespace megalith
