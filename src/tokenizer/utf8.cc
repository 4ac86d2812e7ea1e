#include "tokenizer/utf8.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>

#include "tokenizer/unicode_additions.h"

namespace megalith {

Utf8Step decode_utf8(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return {first, 1, true, false};
  // Restricts second bytes that would begin an overlong form, a surrogate or a value above U+10FFFF.
  int length = 0;
  uint8_t low = 0x80, high = 0xBF;
  uint32_t code_point = 0;
  if (first >= 0xC2 && first <= 0xDF) {
    length = 2;
    code_point = first & 0x1F;
  } else if (first >= 0xE0 && first <= 0xEF) {
    length = 3;
    code_point = first & 0x0F;
    if (first == 0xE0) low = 0xA0;
    if (first == 0xED) high = 0x9F;
  } else if (first >= 0xF0 && first <= 0xF4) {
    length = 4;
    code_point = first & 0x07;
    if (first == 0xF0) low = 0x90;
    if (first == 0xF4) high = 0x8F;
  } else {
    return {};
  }
  for (int i = 1; i < length; ++i) {
    if (static_cast<size_t>(i) == text.size()) return {0xFFFD, i, false, true};
    const uint8_t next = byte(static_cast<size_t>(i));
    if (next < low || next > high) return {0xFFFD, i, false, false};
    code_point = (code_point << 6) | (next & 0x3F);
    low = 0x80;
    high = 0xBF;
  }
  return {code_point, length, true, false};
}

bool is_valid_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    uint64_t eight = 0;
    if (i + sizeof eight <= text.size()) {
      std::memcpy(&eight, text.data() + i, sizeof eight);
      if ((eight & 0x8080808080808080) == 0) {
        i += sizeof eight;
        continue;
      }
    }
    if (static_cast<uint8_t>(text[i]) < 0x80) {
      ++i;
      continue;
    }
    // Most others: two bytes, or three of no lead that restricts the second.
    const auto low = static_cast<uint32_t>(eight), lead = low & 0xFF;
    if (lead >= 0xC2 && (low & 0xC0E0) == 0x80C0) {
      i += 2;
      continue;
    }
    if ((low & 0xC0C0F0) == 0x8080E0 && lead != 0xE0 && lead != 0xED) {
      i += 3;
      continue;
    }
    const Utf8Step step = decode_utf8(text.substr(i));
    if (!step.is_valid) return false;
    i += static_cast<size_t>(step.length);
  }
  return true;
}

bool is_ascii(std::string_view text) {
  for (; text.size() >= 8; text.remove_prefix(8)) {
    uint64_t eight = 0;
    std::memcpy(&eight, text.data(), sizeof eight);
    if ((eight & 0x8080808080808080) != 0) return false;
  }
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<signed char>(c) >= 0; });
}

size_t size_with_replacements(std::string_view text) {
  size_t size = 0;
  for (size_t i = 0; i < text.size();) {
    const Utf8Step step = decode_utf8(text.substr(i));
    size += step.is_valid ? static_cast<size_t>(step.length) : 3;
    i += static_cast<size_t>(step.length);
  }
  return size;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  out.reserve(size_with_replacements(text));  // a long text never moves
  for (size_t i = 0; i < text.size();) {
    const Utf8Step step = decode_utf8(text.substr(i));
    if (step.is_valid) {
      out.append(text.substr(i, static_cast<size_t>(step.length)));
    } else {
      out.append("\xEF\xBF\xBD");
    }
    i += static_cast<size_t>(step.length);
  }
  return out;
}

size_t incomplete_utf8_tail(std::string_view text) {
  for (size_t length = 1; length <= 3 && length <= text.size(); ++length) {
    const auto byte = static_cast<uint8_t>(text[text.size() - length]);
    if (byte < 0x80) return 0;
    if (byte >= 0xC0) {
      const Utf8Step step = decode_utf8(text.substr(text.size() - length));
      return step.is_cut && static_cast<size_t>(step.length) == length ? length : 0;
    }
  }
  return 0;
}

void append_utf8(uint32_t c, std::string& out) {
  const auto put = [&](uint32_t value) { out += static_cast<char>(value); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | (c >> 6));
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | (c >> 12));
    put(0x80 | ((c >> 6) & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | (c >> 18));
    put(0x80 | ((c >> 12) & 0x3F));
    put(0x80 | ((c >> 6) & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

bool is_space(uint32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 0x09 && c <= 0x0D);
  if (c == 0x85) return true;
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category == UTF8PROC_CATEGORY_ZS || category == UTF8PROC_CATEGORY_ZL || category == UTF8PROC_CATEGORY_ZP;
}

namespace {
bool is_added(char category, uint32_t c) {
  const auto ranges = new_code_points(category);
  return std::any_of(ranges.begin(), ranges.end(),
                     [&](const CodePointRange& range) { return c >= range.first && c <= range.last; });
}
}  // namespace

bool is_word(uint32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      break;
  }
  if (c < 0x80) return false;
  // \w includes the joiners, and letters in circles and squares, which are symbols by category.
  if (c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9)) return true;
  if (c >= 0x1F130 && c <= 0x1F189) return c <= 0x1F149 || (c >= 0x1F150 && c <= 0x1F169) || c >= 0x1F170;
  const bool is_other_number = c >= 0x1D2C0 && c <= 0x1D2D3;
  return is_added('L', c) || is_added('M', c) || (is_added('N', c) && !is_other_number);
}

bool is_numeric(uint32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return true;
    default:
      return c >= 0x80 && is_added('N', c);
  }
}

}  // namespace megalith
