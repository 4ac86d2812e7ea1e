// Base64; see base64.h.
#include "tokenizer/base64.h"

#include <fmt/format.h>

#include <cstdint>

#include "core/error.h"

namespace megalith {
namespace {

constexpr int base64_value(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  return c == '+' ? 62 : c == '/' ? 63 : -1;
}

}  // namespace

std::string decode_base64(std::string_view text, std::string_view what) {
  const std::string_view whole = text;
  while (whole.size() - text.size() < 2 && text.ends_with('=')) text.remove_suffix(1);
  std::string bytes;
  bytes.reserve(text.size() * 3 / 4);
  uint32_t bits = 0;
  int num_bits = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const int value = base64_value(text[i]);
    if (value < 0) throw UserError(fmt::format("{} is not base64 at character {}", what, i));
    bits = bits << 6 | static_cast<uint32_t>(value);
    num_bits += 6;
    if (num_bits >= 8) {
      num_bits -= 8;
      bytes += static_cast<char>(bits >> num_bits & 0xFF);
    }
  }
  if (whole.size() % 4 != 0 || text.size() % 4 == 1) {
    throw UserError(fmt::format("{} is base64 of {} characters, which is no multiple of 4", what, whole.size()));
  }
  return bytes;
}

}  // namespace megalith
