// ByteLevel's printable alphabet: each byte as a character allowed in a JSON file (space is Ġ, newline Ċ).
// Source: GPT-2's bytes_to_unicode.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace megalith {

// The code point that spells a byte: itself where printable (33–126, 161–172, 174–255), else U+0100, U+0101, … in
// order.
uint32_t byte_to_symbol(uint8_t byte);
// The bytes that a token spells; nothing if a character is not of the alphabet.
std::optional<std::string> spelt_bytes(std::string_view token);

// Bytes spelt in the alphabet: the inverse of spelt_bytes.
std::string spell_bytes(std::string_view bytes);

}  // namespace megalith
