// UTF-8: decoding, and replacement of malformed bytes as with Python's errors='replace' (and in the Unicode standard).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace megalith {

// One step of decoding: the first `length` bytes of the text form a character, or (is_valid false) the longest valid
// beginning of an incomplete one. `is_cut`: invalid only because the text ends too early.
struct Utf8Step {
  uint32_t code_point = 0xFFFD;
  int length = 1;
  bool is_valid = false;
  bool is_cut = false;
};
Utf8Step decode_utf8(std::string_view text);  // text must not be empty

// The character at i of valid UTF-8, and its length in bytes.
inline uint32_t valid_code_point(std::string_view text, size_t i, size_t& length) {
  const auto byte = static_cast<uint8_t>(text[i]);
  const auto low = [&](size_t k) { return static_cast<uint32_t>(static_cast<uint8_t>(text[i + k]) & 0x3F); };
  if (byte < 0x80) {
    length = 1;
    return byte;
  }
  if (byte < 0xE0) {
    length = 2;
    return (byte & 0x1Fu) << 6 | low(1);
  }
  if (byte < 0xF0) {
    length = 3;
    return (byte & 0x0Fu) << 12 | low(1) << 6 | low(2);
  }
  length = 4;
  return (byte & 0x07u) << 18 | low(1) << 12 | low(2) << 6 | low(3);
}

bool is_valid_utf8(std::string_view text);
bool is_ascii(std::string_view text);
// Replaces every malformed sequence (its longest valid beginning, at least one byte) by one U+FFFD; size_… is the size
// of the result in bytes, up to three times the text's.
std::string replace_invalid_utf8(std::string_view text);
size_t size_with_replacements(std::string_view text);
// Number of bytes at the end of `text` that more bytes may complete to a character: 0 to 3.
size_t incomplete_utf8_tail(std::string_view text);
// Bytes of the character that begins with `first`, in valid UTF-8.
constexpr size_t utf8_length(char first) {
  const auto byte = static_cast<uint8_t>(first);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}
void append_utf8(uint32_t code_point, std::string& out);

// Unicode classes as in regular expressions: \s (White_Space), \w, and N* (numeric).
bool is_space(uint32_t code_point);
bool is_word(uint32_t code_point);
bool is_numeric(uint32_t code_point);

}  // namespace megalith
