#include "core/visible_text.h"

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>

namespace megalith {
namespace {

struct Character {
  size_t length = 0;  // bytes; 0: not UTF-8
  uint32_t code = 0;
};

// Refuses overlong forms, surrogates and codes above U+10FFFF.
Character read_character(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return {1, first};
  const size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return {};
  uint32_t code = first & (0xff >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    code = (code << 6) | (byte(i) & 0x3f);
  }
  constexpr uint32_t kFirstOfLength[] = {0, 0, 0x80, 0x800, 0x10000};
  if (code < kFirstOfLength[length] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return {};
  return {length, code};
}

bool is_obeyed(uint32_t code) {
  if (code < 0x20) return code != '\n' && code != '\t';
  return (code >= 0x7f && code < 0xa0) || (code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
}

}  // namespace

std::string visible_text(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Character character = read_character(text);
    size_t length = character.length;
    if (length == 0) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[0]));
      length = 1;
    } else if (!is_obeyed(character.code)) {
      out += text.substr(0, length);
    } else {
      out +=
          character.code < 0x80 ? fmt::format("\\x{:02x}", character.code) : fmt::format("\\u{:04x}", character.code);
    }
    text.remove_prefix(length);
  }
  return out;
}

}  // namespace megalith
