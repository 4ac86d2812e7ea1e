// See known_pattern.h. Comments name the alternatives of the regular expression, in its order.
#include "tokenizer/known_pattern.h"

#include <utf8proc.h>

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/unicode_additions.h"
#include "tokenizer/utf8.h"

namespace megalith {
namespace {

enum Class : uint8_t { kSymbol, kLetter, kNumber, kBlank, kLineEnd };

Class compute_class(uint32_t c) {
  if (c == '\r' || c == '\n') return kLineEnd;
  if (is_space(c)) return kBlank;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return kLetter;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return kNumber;
    default:
      return kSymbol;
  }
}

// The class of every code point, computed once: 1.1 MB, of which only the text's characters are touched.
class ClassTable {
 public:
  ClassTable() : classes_(0x110000) {
    for (uint32_t c = 0; c < classes_.size(); ++c) classes_[c] = compute_class(c);
    for (const char category : {'L', 'N'}) {
      for (const CodePointRange& range : new_code_points(category)) {
        for (uint32_t c = range.first; c <= range.last; ++c) classes_[c] = category == 'L' ? kLetter : kNumber;
      }
    }
  }
  const uint8_t* data() const { return classes_.data(); }

 private:
  std::vector<uint8_t> classes_;
};

const uint8_t* class_table() {
  static const ClassTable table;
  return table.data();
}

struct Scan {
  std::string_view text;
  const uint8_t* classes = class_table();

  // The class of the character at i and its length in bytes.
  Class at(size_t i, size_t& length) const {
    const auto byte = static_cast<uint8_t>(text[i]);
    if (byte < 0x80) {
      length = 1;
      return static_cast<Class>(classes[byte]);
    }
    const auto low = [&](size_t k) { return static_cast<uint32_t>(static_cast<uint8_t>(text[i + k]) & 0x3F); };
    if (byte < 0xE0) {
      length = 2;
      return static_cast<Class>(classes[(byte & 0x1Fu) << 6 | low(1)]);
    }
    if (byte < 0xF0) {
      length = 3;
      return static_cast<Class>(classes[(byte & 0x0Fu) << 12 | low(1) << 6 | low(2)]);
    }
    length = 4;
    return static_cast<Class>(classes[(byte & 0x07u) << 18 | low(1) << 12 | low(2) << 6 | low(3)]);
  }
  bool is(Class wanted, size_t i, size_t& length) const { return i < text.size() && at(i, length) == wanted; }

  // The end of the run of one class from i, of at most `most` characters.
  size_t run(Class wanted, size_t i, size_t most = SIZE_MAX) const {
    for (size_t length = 0; most > 0 && is(wanted, i, length); --most) i += length;
    return i;
  }

  // \s+(?!\S)|\s+ from i, for white space ending at `end`: all of it at the end of the text, else all but its last
  // character, unless it is a single one.
  size_t blanks(size_t i, size_t end) const {
    if (end == text.size()) return end;
    size_t last = end - 1;
    while (last > i && (static_cast<uint8_t>(text[last]) & 0xC0) == 0x80) --last;
    return last > i ? last : end;
  }
};

// 's|'t|'re|'ve|'m|'ll|'d at i, the index of an apostrophe; 0 if none matches.
size_t contraction_end(std::string_view text, size_t i, bool ignore_case) {
  const auto letter = [&](size_t k) -> char {
    if (i + k >= text.size()) return '\0';
    const char c = text[i + k];
    return ignore_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  };
  const char first = letter(1), second = letter(2);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return i + 2;
  if ((first == 'r' && second == 'e') || (first == 'v' && second == 'e') || (first == 'l' && second == 'l'))
    return i + 3;
  if (ignore_case && text.substr(i + 1).starts_with("\u017F")) return i + 3;  // ſ matches s if case is ignored
  return 0;
}

size_t match_gpt2(const Scan& scan, size_t begin) {
  const std::string_view text = scan.text;
  if (text[begin] == '\'') {
    if (const size_t end = contraction_end(text, begin, false)) return end;
  }
  size_t length = 0;
  const Class first = scan.at(begin, length);
  // ' ?\p{L}+', ' ?\p{N}+' and ' ?[^\s\p{L}\p{N}]+'
  if (first == kLetter || first == kNumber || first == kSymbol) return scan.run(first, begin + length);
  if (text[begin] == ' ' && begin + 1 < text.size()) {
    const Class second = scan.at(begin + 1, length);
    if (second == kLetter || second == kNumber || second == kSymbol) return scan.run(second, begin + 1 + length);
  }
  size_t end = begin;
  while (scan.is(kBlank, end, length) || scan.is(kLineEnd, end, length)) end += length;
  return scan.blanks(begin, end);
}

// Llama 3's pattern; Qwen2's takes numbers one digit at a time.
size_t match_llama3(const Scan& scan, size_t begin, size_t most_digits) {
  const std::string_view text = scan.text;
  size_t length = 0, next_length = 0;
  const Class first = scan.at(begin, length);
  if (first == kLetter) return scan.run(kLetter, begin + length);
  if (text[begin] == '\'') {
    if (const size_t end = contraction_end(text, begin, true)) return end;
  }
  // [^\r\n\p{L}\p{N}]?\p{L}+
  if (first != kLineEnd && first != kNumber && scan.is(kLetter, begin + length, next_length)) {
    return scan.run(kLetter, begin + length + next_length);
  }
  if (first == kNumber) return scan.run(kNumber, begin, most_digits);
  // ' ?[^\s\p{L}\p{N}]+[\r\n]*'
  const size_t symbols = begin + (text[begin] == ' ' ? 1 : 0);
  if (scan.is(kSymbol, symbols, length)) return scan.run(kLineEnd, scan.run(kSymbol, symbols + length));
  // '\s*[\r\n]+': to the last line end of the white space
  size_t end = begin, after_line = 0;
  for (;;) {
    if (scan.is(kLineEnd, end, length)) {
      after_line = end + length;
    } else if (!scan.is(kBlank, end, length)) {
      break;
    }
    end += length;
  }
  return after_line > 0 ? after_line : scan.blanks(begin, end);
}

}  // namespace

std::optional<KnownPattern> find_known_pattern(std::string_view expression) {
  constexpr std::string_view kQwen2Pattern =
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  if (expression == kGpt2Pattern) return KnownPattern::kGpt2;
  if (expression == kLlama3Pattern) return KnownPattern::kLlama3;
  if (expression == kQwen2Pattern) return KnownPattern::kQwen2;
  return std::nullopt;
}

size_t match_end(KnownPattern pattern, std::string_view text, size_t begin) {
  const Scan scan{text};
  switch (pattern) {
    case KnownPattern::kGpt2:
      return match_gpt2(scan, begin);
    case KnownPattern::kLlama3:
      return match_llama3(scan, begin, 3);
    case KnownPattern::kQwen2:
      return match_llama3(scan, begin, 1);
  }
  return text.size();
}

}  // namespace megalith
