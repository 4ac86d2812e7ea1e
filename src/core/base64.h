// Base64 (RFC 4648), without line breaks.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace megalith {

inline constexpr std::string_view kBase64Digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

inline void append_base64(std::string& text, std::string_view bytes) {
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const auto byte = [&](size_t k) { return k < bytes.size() ? static_cast<unsigned char>(bytes[k]) : 0u; };
    const unsigned bits = byte(i) << 16 | byte(i + 1) << 8 | byte(i + 2);
    for (size_t k = 0; k < 4; ++k) text += i + k > bytes.size() ? '=' : kBase64Digits[bits >> (18 - 6 * k) & 63];
  }
}

// Padding is optional; null if not base64.
std::optional<std::string> decode_base64(std::string_view text);
// Requires padding; `what` names the text in the UserError.
std::string decode_base64(std::string_view text, std::string_view what);

}  // namespace megalith
