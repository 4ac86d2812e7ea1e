// Pre-tokenizers that cut at characters or patterns; see pre_tokenizer.h. Semantics as in Hugging Face's `tokenizers`.
#include "tokenizer/split.h"

#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/error.h"
#include "core/json.h"
#include "tokenizer/known_pattern.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/older_unicode.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/regex.h"
#include "tokenizer/utf8.h"

namespace megalith {
namespace {

class RegexSplit final : public PreTokenizer {
 public:
  RegexSplit(Regex regex, SplitBehavior behavior, bool invert)
      : regex_(std::move(regex)), behavior_(behavior), invert_(invert) {}

  void split(const TextPiece& piece, PieceSink sink) const override {
    Regex::Scanner scanner(regex_, piece.text);
    StretchJoiner joiner(piece, sink, behavior_);
    size_t previous_end = 0, begin = 0, end = 0;
    while (scanner.next(begin, end)) {
      if (begin > previous_end) joiner.add(previous_end, begin, invert_);
      if (end > begin) joiner.add(begin, end, !invert_);
      // An empty match still cuts the text at its offset.
      previous_end = end;
    }
    if (previous_end < piece.text.size()) joiner.add(previous_end, piece.text.size(), invert_);
    joiner.finish();
  }

 private:
  Regex regex_;
  SplitBehavior behavior_;
  bool invert_;
};

class KnownPatternSplit final : public PreTokenizer {
 public:
  explicit KnownPatternSplit(KnownPattern pattern) : pattern_(pattern) {}

  void split(const TextPiece& piece, PieceSink sink) const override { split_known(pattern_, piece, sink); }
  std::vector<KnownPattern> patterns() const override { return {pattern_}; }

 private:
  KnownPattern pattern_;
};

using CharacterTest = bool (*)(uint32_t);

class CharacterSplit final : public PreTokenizer {
 public:
  CharacterSplit(CharacterTest test, SplitBehavior behavior) : test_(test), behavior_(behavior) {}
  void split(const TextPiece& piece, PieceSink sink) const override { split_at(piece, sink, behavior_, test_); }

 private:
  CharacterTest test_;
  SplitBehavior behavior_;
};

class DelimiterSplit final : public PreTokenizer {
 public:
  explicit DelimiterSplit(uint32_t delimiter) : delimiter_(delimiter) {}
  void split(const TextPiece& piece, PieceSink sink) const override {
    split_at(piece, sink, SplitBehavior::kRemoved, [this](uint32_t c) { return c == delimiter_; });
  }

 private:
  uint32_t delimiter_;
};

// BertPreTokenizer and Punctuation: ASCII's punctuation counts whatever its category.
bool is_punctuation(uint32_t c) { return is_in(kPunctuation, c); }

// White space is dropped, each punctuation mark is a piece.
class BertSplit final : public PreTokenizer {
 public:
  BertSplit() {
    for (uint32_t c = 0; c < ascii_.size(); ++c) ascii_[c] = kind_of(c);
  }

  void split(const TextPiece& piece, PieceSink sink) const override {
    const auto put = [&](size_t begin, size_t end) {
      if (begin < end) sink({piece.text.substr(begin, end - begin), piece.starts_input && begin == 0});
    };
    size_t begin = 0;
    for (size_t i = 0; i < piece.text.size();) {
      const auto byte = static_cast<uint8_t>(piece.text[i]);
      const Utf8Step step = byte < 0x80 ? Utf8Step{byte, 1, true} : decode_utf8(piece.text.substr(i));
      const Kind kind = byte < 0x80 ? ascii_[byte] : known_kind(step.code_point);
      const size_t end = i + static_cast<size_t>(step.length);
      if (kind != kWord) {
        put(begin, i);
        if (kind == kMark) put(i, end);
        begin = end;
      }
      i = end;
    }
    put(begin, piece.text.size());
  }

 private:
  enum Kind : uint8_t { kWord, kSpace, kMark };
  static Kind kind_of(uint32_t c) { return is_space(c) ? kSpace : is_punctuation(c) ? kMark : kWord; }

  static Kind known_kind(uint32_t c) {
    static const std::vector<Kind> kinds = [] {
      std::vector<Kind> table(0x10000);
      for (uint32_t i = 0; i < table.size(); ++i) table[i] = kind_of(i);
      return table;
    }();
    return c < kinds.size() ? kinds[c] : kind_of(c);
  }

  std::array<Kind, 128> ascii_;
};

// \w+|[^\w\s]+: runs of word characters and of others; white space is dropped.
class WhitespaceWords final : public PreTokenizer {
 public:
  void split(const TextPiece& piece, PieceSink sink) const override {
    enum Kind { kSpace, kWord, kOther };
    Kind kind = kSpace;
    size_t begin = 0;
    const auto flush = [&](size_t end) {
      if (kind != kSpace) sink({piece.text.substr(begin, end - begin), piece.starts_input && begin == 0});
    };
    for (size_t i = 0; i < piece.text.size();) {
      const Utf8Step step = decode_utf8(piece.text.substr(i));
      const Kind now = is_word(step.code_point) ? kWord : is_space(step.code_point) ? kSpace : kOther;
      if (now != kind) {
        flush(i);
        kind = now;
        begin = i;
      }
      i += static_cast<size_t>(step.length);
    }
    flush(piece.text.size());
  }
};

class FixedLengthSplit final : public PreTokenizer {
 public:
  explicit FixedLengthSplit(int64_t length) : length_(length) {}
  void split(const TextPiece& piece, PieceSink sink) const override {
    for (size_t begin = 0; begin < piece.text.size();) {
      size_t end = begin;
      for (int64_t i = 0; i < length_ && end < piece.text.size(); ++i) end += utf8_length(piece.text[end]);
      sink({piece.text.substr(begin, end - begin), piece.starts_input && begin == 0});
      begin = end;
    }
  }

 private:
  int64_t length_;
};

SplitBehavior read_behavior(const Json& json, std::string_view where) {
  const auto word = json_get<std::string>(json, "behavior", where);
  constexpr std::string_view kWords[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
  for (int i = 0; i < 5; ++i) {
    if (word == kWords[i]) return static_cast<SplitBehavior>(i);
  }
  throw UserError(fmt::format("{}: split behavior \"{}\" is unknown", where, word));
}

}  // namespace

std::unique_ptr<PreTokenizer> make_pattern_split(std::string_view expression, std::string_view where) {
  if (const auto known = find_known_pattern(expression)) return std::make_unique<KnownPatternSplit>(*known);
  return std::make_unique<RegexSplit>(Regex(expression, where), SplitBehavior::kIsolated, false);
}

std::unique_ptr<PreTokenizer> make_split(std::string_view type, const Json& json, std::string_view where) {
  const auto by_character = [](CharacterTest test, SplitBehavior behavior) {
    return std::make_unique<CharacterSplit>(test, behavior);
  };
  if (type == "Split") {
    const std::string expression = read_pattern(get_member(json, "pattern", where), where);
    const SplitBehavior behavior = read_behavior(json, where);
    const bool invert = json_get_or(json, "invert", false, where);
    if (behavior == SplitBehavior::kIsolated && !invert) return make_pattern_split(expression, where);
    return std::make_unique<RegexSplit>(Regex(expression, where), behavior, invert);
  }
  if (type == "Digits") {
    const bool individual = json_get_or(json, "individual_digits", false, where);
    return by_character(is_numeric, individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous);
  }
  if (type == "Punctuation") {
    const bool has_behavior = find_member(json, "behavior", where) != nullptr;
    return by_character(is_punctuation, has_behavior ? read_behavior(json, where) : SplitBehavior::kIsolated);
  }
  if (type == "WhitespaceSplit") return by_character(is_space, SplitBehavior::kRemoved);
  if (type == "Whitespace") return std::make_unique<WhitespaceWords>();
  if (type == "BertPreTokenizer") return std::make_unique<BertSplit>();
  if (type == "CharDelimiterSplit") {
    return std::make_unique<DelimiterSplit>(read_character(json, "delimiter", where));
  }
  if (type == "FixedLength") {
    const auto length = json_get_or<int64_t>(json, "length", 5, where);
    if (length < 1) throw UserError(fmt::format("{}: FixedLength has length {}", where, length));
    return std::make_unique<FixedLengthSplit>(length);
  }
  return nullptr;
}

uint32_t read_character(const Json& json, const char* key, std::string_view where) {
  const auto text = json_get<std::string>(json, key, where);
  if (text.empty() || utf8_length(text[0]) != text.size()) {
    throw UserError(fmt::format("{}: \"{}\" is \"{}\", expected one character", where, key, text));
  }
  return decode_utf8(text).code_point;
}

}  // namespace megalith
