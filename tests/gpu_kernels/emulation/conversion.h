// A chip's instructions for casts to eight bits.
#pragma once

#include <cstdint>

namespace megalith::gpu_emulation {

// None; PTX's cvt.rn.satfinite; CDNA's v_cvt_pk_{fp8,bf8}_f32 after v_med3_f32, on gfx942 with fnuz numbers, on gfx950
// with OCP's. NaN loses its sign.
enum class Conversion { kNone, kSaturating, kFnuz, kOcp };
// For launches that begin from now on, in any thread.
void set_conversion(Conversion conversion);

bool has_conversion(bool is_fnuz);
// The codes of two numbers, `low` in the lower byte; a format by its bits and largest number.
uint32_t convert_pair(int mantissa_bits, float largest, float low, float high);

}  // namespace megalith::gpu_emulation

// Bytes of {y, x} by the four lower nibbles of the selector.
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const unsigned long long both = (static_cast<unsigned long long>(y) << 32) | x;
  unsigned result = 0;
  for (unsigned i = 0; i < 4; ++i) {
    result |= static_cast<unsigned>(both >> ((selector >> (4 * i) & 7) * 8) & 0xFF) << (8 * i);
  }
  return result;
}
