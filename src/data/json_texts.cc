// One pass over a line; see json_texts.h. The grammar is RFC 8259's.
#include "data/json_texts.h"

#include <bit>
#include <cstdint>
#include <cstring>

#include "tokenizer/utf8.h"

namespace megalith {
namespace {

constexpr int kDeepest = 64;
constexpr std::ptrdiff_t kLongestNumber = 300;  // longer ones may overflow a double
constexpr std::ptrdiff_t kLongestMantissa = 100;

// Each function moves `at` past what it reads, or returns false.
struct JsonScan {
  const char* at;
  const char* end;

  bool take(char c) {
    if (at == end || *at != c) return false;
    ++at;
    return true;
  }

  void skip_blanks() {
    while (at < end && (*at == ' ' || *at == '\t' || *at == '\n' || *at == '\r')) ++at;
  }

  // To the next quote, backslash or control character.
  void skip_plain() {
    constexpr uint64_t kOnes = 0x0101010101010101, kHigh = 0x8080808080808080;
    const auto has_zero = [&](uint64_t word) { return (word - kOnes) & ~word & kHigh; };
    for (; end - at >= 8; at += 8) {
      uint64_t word = 0;
      std::memcpy(&word, at, 8);
      // The lowest marked byte is right; a borrow may mark those above it.
      const uint64_t found =
          has_zero(word ^ kOnes * '"') | has_zero(word ^ kOnes * '\\') | ((word - kOnes * 0x20) & ~word & kHigh);
      if (found != 0) {
        at += std::countr_zero(found) / 8;
        return;
      }
    }
    while (at < end && *at != '"' && *at != '\\' && static_cast<uint8_t>(*at) >= 0x20) ++at;
  }

  bool hex(uint32_t& value) {
    if (end - at < 4) return false;
    value = 0;
    for (int i = 0; i < 4; ++i, ++at) {
      const char c = *at, low = static_cast<char>(c | 0x20);
      if (c >= '0' && c <= '9') {
        value = value << 4 | static_cast<uint32_t>(c - '0');
      } else if (low >= 'a' && low <= 'f') {
        value = value << 4 | static_cast<uint32_t>(low - 'a' + 10);
      } else {
        return false;
      }
    }
    return true;
  }

  // After a backslash.
  bool escape(std::string* out) {
    if (at == end) return false;
    const char c = *at++;
    if (c == 'u') {
      uint32_t code = 0, low = 0;
      if (!hex(code) || (code >= 0xDC00 && code < 0xE000)) return false;
      if (code >= 0xD800 && code < 0xDC00) {
        if (!take('\\') || !take('u') || !hex(low) || low < 0xDC00 || low >= 0xE000) return false;
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
      }
      if (out != nullptr) append_utf8(code, *out);
      return true;
    }
    constexpr std::string_view kNames = "\"\\/bfnrt", kValues = "\"\\/\b\f\n\r\t";
    const size_t which = kNames.find(c);
    if (which == std::string_view::npos) return false;
    if (out != nullptr) *out += kValues[which];
    return true;
  }

  // A string with its quotes. `text` views the line, or `out` if there are escapes; null `out`: only check.
  bool string(std::string_view& text, std::string* out) {
    if (!take('"')) return false;
    const char* begin = at;
    skip_plain();
    if (take('"')) {
      text = {begin, static_cast<size_t>(at - 1 - begin)};
      return true;
    }
    if (out != nullptr) {
      out->clear();
      out->reserve(static_cast<size_t>(end - begin));  // so a long text never moves
      out->assign(begin, at);
    }
    while (take('\\')) {
      if (!escape(out)) return false;
      begin = at;
      skip_plain();
      if (out != nullptr) out->append(begin, at);
    }
    if (!take('"')) return false;
    if (out != nullptr) text = *out;
    return true;
  }

  bool digits() {
    const char* begin = at;
    while (at < end && *at >= '0' && *at <= '9') ++at;
    return at > begin;
  }

  bool number() {
    const char* begin = at;
    take('-');
    if (!take('0') && !digits()) return false;
    if (take('.') && !digits()) return false;
    if (at - begin > kLongestNumber) return false;
    if (at == end || (*at != 'e' && *at != 'E')) return true;
    ++at;
    if (at < end && (*at == '+' || *at == '-')) ++at;
    const char* exponent = at;
    // Two exponent digits cannot overflow a double.
    return digits() && at - exponent <= 2 && exponent - begin <= kLongestMantissa;
  }

  bool word(std::string_view expected) {
    if (static_cast<size_t>(end - at) < expected.size() || std::string_view(at, expected.size()) != expected)
      return false;
    at += expected.size();
    return true;
  }

  bool value(int depth) {
    if (at == end || depth > kDeepest) return false;
    std::string_view ignored;
    switch (*at) {
      case '"':
        return string(ignored, nullptr);
      case 't':
        return word("true");
      case 'f':
        return word("false");
      case 'n':
        return word("null");
      case '[':
        return members(']', [&] { return value(depth + 1); });
      case '{':
        return members('}', [&] {
          if (!string(ignored, nullptr)) return false;
          skip_blanks();
          if (!take(':')) return false;
          skip_blanks();
          return value(depth + 1);
        });
      default:
        return number();
    }
  }

  // A list in brackets, each member read by `member`.
  template <typename Member>
  bool members(char close, const Member& member) {
    ++at;
    skip_blanks();
    if (take(close)) return true;
    while (member()) {
      skip_blanks();
      if (take(close)) return true;
      if (!take(',')) return false;
      skip_blanks();
    }
    return false;
  }
};

}  // namespace

JsonTexts::JsonTexts(std::vector<std::string> keys)
    : keys_(std::move(keys)),
      texts_(keys_.size()),
      is_list_(keys_.size()),
      unescaped_(keys_.size()),
      is_found_(keys_.size()) {}

void JsonTexts::for_each(size_t k, const std::function<void(std::string_view)>& on_text) {
  if (!is_list_[k]) return on_text(texts_[k]);
  JsonScan scan{texts_[k].data(), texts_[k].data() + texts_[k].size()};
  std::string_view item;
  scan.members(']', [&] {
    if (!scan.string(item, &unescaped_[k])) return false;
    on_text(item);
    return true;
  });
}

bool JsonTexts::holds_all() const {
  for (size_t k = 0; k < keys_.size(); ++k) {
    if (texts_[k].data() != unescaped_[k].data()) return false;
  }
  return true;
}

bool JsonTexts::read(std::string_view line) {
  is_found_.assign(keys_.size(), false);
  size_t num_found = 0;
  JsonScan scan{line.data(), line.data() + line.size()};
  scan.skip_blanks();
  if (scan.at == scan.end || *scan.at != '{') return false;
  const bool is_object = scan.members('}', [&] {
    const char* begin = scan.at;
    std::string_view name;
    if (!scan.string(name, nullptr)) return false;
    // An escaped name could be any.
    if (scan.at - begin != static_cast<std::ptrdiff_t>(name.size()) + 2) return false;
    scan.skip_blanks();
    if (!scan.take(':')) return false;
    scan.skip_blanks();
    bool is_wanted = false;
    const char* value = scan.at;
    for (size_t k = 0; k < keys_.size(); ++k) {
      if (keys_[k] != name) continue;
      scan.at = value;
      is_list_[k] = scan.at < scan.end && *scan.at == '[';
      if (!is_list_[k]) {
        if (!scan.string(texts_[k], &unescaped_[k])) return false;
      } else {
        if (!scan.members(']', [&] { return scan.string(texts_[k], nullptr); })) return false;
        texts_[k] = {value, static_cast<size_t>(scan.at - value)};
      }
      is_wanted = true;
      if (!is_found_[k]) ++num_found;
      is_found_[k] = true;
    }
    return is_wanted || scan.value(1);
  });
  scan.skip_blanks();
  return is_object && scan.at == scan.end && num_found == keys_.size();
}

}  // namespace megalith
