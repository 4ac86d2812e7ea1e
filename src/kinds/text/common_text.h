// Common prefix and suffix of two texts, whole characters only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

namespace megalith {

// In bytes.
inline size_t common_beginning(std::string_view a, std::string_view b) {
  auto size = static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
  const auto is_inside = [](std::string_view text, size_t i) {
    return i < text.size() && (static_cast<uint8_t>(text[i]) & 0xC0) == 0x80;
  };
  while (size > 0 && (is_inside(a, size) || is_inside(b, size))) --size;
  return size;
}

inline size_t common_end(std::string_view a, std::string_view b) {
  auto size = static_cast<size_t>(std::mismatch(a.rbegin(), a.rend(), b.rbegin(), b.rend()).first - a.rbegin());
  while (size > 0 && (static_cast<uint8_t>(a[a.size() - size]) & 0xC0) == 0x80) --size;
  return size;
}

}  // namespace megalith
