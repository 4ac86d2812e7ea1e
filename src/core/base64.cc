// See base64.h.
#include "core/base64.h"

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <utility>

#include "core/error.h"

namespace megalith {
std::optional<std::string> decode_base64(std::string_view text) {
  constexpr auto kValues = [] {
    std::array<int8_t, 256> values;
    values.fill(-1);
    for (size_t i = 0; i < kBase64Digits.size(); ++i) {
      values[static_cast<unsigned char>(kBase64Digits[i])] = static_cast<int8_t>(i);
    }
    return values;
  }();
  while (text.ends_with('=')) text.remove_suffix(1);
  if (text.size() % 4 == 1) return std::nullopt;
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3 + 2);
  uint32_t bits = 0;
  int num_bits = 0;
  for (const char c : text) {
    const int8_t value = kValues[static_cast<unsigned char>(c)];
    if (value < 0) return std::nullopt;
    bits = bits << 6 | static_cast<uint32_t>(value);
    num_bits += 6;
    if (num_bits < 8) continue;
    num_bits -= 8;
    bytes += static_cast<char>(bits >> num_bits & 0xff);
  }
  return bytes;
}

std::string decode_base64(std::string_view text, std::string_view what) {
  std::optional<std::string> bytes = decode_base64(text);
  if (bytes && text.size() % 4 == 0) return std::move(*bytes);
  if (const size_t bad = text.find_first_not_of(kBase64Digits); !bytes && bad < text.find_last_not_of('=')) {
    throw UserError(fmt::format("{} is not base64 at character {}", what, bad));
  }
  throw UserError(fmt::format("{} is base64 of {} characters, which is no multiple of 4", what, text.size()));
}

}  // namespace megalith
