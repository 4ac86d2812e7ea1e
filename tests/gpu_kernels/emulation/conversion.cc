#include "gpu_kernels/emulation/conversion.h"

#include <algorithm>
#include <atomic>
#include <cmath>

namespace megalith::gpu_emulation {
namespace {

std::atomic<Conversion> the_conversion{Conversion::kNone};

// From the formats' definition, in double: the nearest multiple of the unit of x's binade.
uint32_t convert(Conversion conversion, int mantissa_bits, double largest, float x) {
  const bool is_fnuz = conversion == Conversion::kFnuz;
  const int bias = (mantissa_bits == 3 ? 7 : 15) + (is_fnuz ? 1 : 0);
  const uint32_t nan = is_fnuz ? 0x80 : 0x7F, sign = std::signbit(x) ? 0x80 : 0;
  if (std::isnan(x)) return nan;
  int exponent = 0;
  std::frexp(std::abs(static_cast<double>(x)), &exponent);  // |x| in [2^(exponent - 1), 2^exponent)
  const int binade = std::isinf(x) ? 128 : std::max(exponent - 1, 1 - bias);
  const double unit = std::ldexp(1.0, binade - mantissa_bits);
  double rounded = std::isinf(x) ? INFINITY : std::nearbyint(std::abs(static_cast<double>(x)) / unit) * unit;
  if (rounded > largest) {
    if (conversion != Conversion::kSaturating) return is_fnuz || mantissa_bits == 3 ? nan | sign : 0x7C | sign;
    rounded = largest;
  }
  if (rounded == 0) return is_fnuz ? 0 : sign;
  std::frexp(rounded, &exponent);
  const int of_code = std::max(exponent - 1, 1 - bias);
  const auto significand = static_cast<uint32_t>(std::ldexp(rounded, mantissa_bits - of_code));
  // A significand with its leading one raises the exponent's field by one.
  return (static_cast<uint32_t>(of_code - (1 - bias)) << mantissa_bits) + significand + sign;
}

}  // namespace

void set_conversion(Conversion conversion) { the_conversion = conversion; }

bool has_conversion(bool is_fnuz) {
  const Conversion conversion = the_conversion.load();
  return conversion != Conversion::kNone && (conversion == Conversion::kFnuz) == is_fnuz;
}
uint32_t convert_pair(int mantissa_bits, float largest, float low, float high) {
  const Conversion conversion = the_conversion.load();
  if (conversion != Conversion::kSaturating) {  // as kernels do before the instruction (v_med3_f32)
    low = std::min(std::max(low, -largest), largest);
    high = std::min(std::max(high, -largest), largest);
  }
  return convert(conversion, mantissa_bits, largest, low) | convert(conversion, mantissa_bits, largest, high) << 8;
}

}  // namespace megalith::gpu_emulation
