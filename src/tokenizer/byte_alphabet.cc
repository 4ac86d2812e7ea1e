// ByteLevel's alphabet; see byte_alphabet.h.
#include "tokenizer/byte_alphabet.h"

#include <array>

#include "tokenizer/utf8.h"

namespace megalith {
namespace {

constexpr bool is_printable(int byte) {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || (byte >= 174 && byte <= 255);
}

constexpr std::array<uint16_t, 256> make_symbols() {
  std::array<uint16_t, 256> symbols{};
  uint16_t next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    symbols[static_cast<size_t>(byte)] = is_printable(byte) ? static_cast<uint16_t>(byte) : next++;
  }
  return symbols;
}
constexpr std::array<uint16_t, 256> kSymbols = make_symbols();

// Code points of the alphabet end at U+0143; -1 marks those that spell no byte.
constexpr std::array<int16_t, 324> make_bytes() {
  std::array<int16_t, 324> bytes{};
  for (int16_t& byte : bytes) byte = -1;
  for (int byte = 0; byte < 256; ++byte) bytes[kSymbols[static_cast<size_t>(byte)]] = static_cast<int16_t>(byte);
  return bytes;
}
constexpr std::array<int16_t, 324> kBytes = make_bytes();

}  // namespace

uint32_t byte_to_symbol(uint8_t byte) { return kSymbols[byte]; }

std::optional<std::string> spelt_bytes(std::string_view token) {
  std::string bytes;
  for (size_t i = 0; i < token.size();) {
    const Utf8Step step = decode_utf8(token.substr(i));
    if (step.code_point >= kBytes.size() || kBytes[step.code_point] < 0) return std::nullopt;
    bytes += static_cast<char>(kBytes[step.code_point]);
    i += static_cast<size_t>(step.length);
  }
  return bytes;
}

std::string spell_bytes(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size() + bytes.size() / 4);
  for (const char c : bytes) append_utf8(byte_to_symbol(static_cast<uint8_t>(c)), text);
  return text;
}

}  // namespace megalith
