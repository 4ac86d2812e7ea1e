// Pre-tokenizers that change the text, and their sequence; see pre_tokenizer.h. Semantics as in Hugging Face's
// `tokenizers`.
#include "tokenizer/pre_tokenizer.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "core/error.h"
#include "core/json.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/split.h"
#include "tokenizer/unicode_scripts.h"
#include "tokenizer/utf8.h"

namespace megalith {
namespace {

// ByteLevel: optional leading space, optional GPT-2 pattern, then the bytes in the printable alphabet unless the model
// works on bytes.
class ByteLevel final : public PreTokenizer {
 public:
  ByteLevel(bool add_prefix_space, std::unique_ptr<PreTokenizer> pattern, bool keep_bytes)
      : add_prefix_space_(add_prefix_space), pattern_(std::move(pattern)), keep_bytes_(keep_bytes) {}

  void split(const TextPiece& piece, PieceSink sink) const override {
    if (piece.text.empty()) return;
    std::string with_space;
    TextPiece whole = piece;
    if (add_prefix_space_ && piece.text.front() != ' ') {
      with_space = fmt::format(" {}", piece.text);
      whole.text = with_space;
    }
    const auto spell = [&](const TextPiece& part) {
      const std::string text = spell_bytes(part.text);
      sink({text, part.starts_input});
    };
    const PieceSink last = keep_bytes_ ? sink : PieceSink(spell);
    if (pattern_) {
      pattern_->split(whole, last);
    } else {
      last(whole);
    }
  }
  std::vector<KnownPattern> patterns() const override {
    if (add_prefix_space_ || !keep_bytes_ || !pattern_) return {};
    return pattern_->patterns();
  }

 private:
  bool add_prefix_space_;
  std::unique_ptr<PreTokenizer> pattern_;
  bool keep_bytes_;
};

// Blanks become a visible character, optionally also prepended; pieces begin with it.
class Metaspace final : public PreTokenizer {
 public:
  enum class Prepend { kFirst, kNever, kAlways };
  Metaspace(uint32_t replacement, Prepend prepend, bool split)
      : replacement_(replacement), prepend_(prepend), split_(split) {
    append_utf8(replacement, spelling_);
  }

  void split(const TextPiece& piece, PieceSink sink) const override {
    std::string text;
    text.reserve(piece.text.size() + piece.text.size() / 2 + spelling_.size());
    const bool begins_with_it = piece.text.starts_with(spelling_) || piece.text.starts_with(' ');
    const bool wants_it = prepend_ == Prepend::kAlways || (prepend_ == Prepend::kFirst && piece.starts_input);
    if (wants_it && !begins_with_it) text = spelling_;
    for (const char c : piece.text) {
      if (c == ' ') {
        text += spelling_;
      } else {
        text += c;
      }
    }
    const TextPiece whole{text, piece.starts_input};
    if (split_) {
      split_at(whole, sink, SplitBehavior::kMergedWithNext, [this](uint32_t c) { return c == replacement_; });
    } else {
      sink(whole);
    }
  }

 private:
  uint32_t replacement_;
  std::string spelling_;
  Prepend prepend_;
  bool split_;
};

// Cuts where the script changes. As in the library, leading characters without a script are dropped.
class UnicodeScripts final : public PreTokenizer {
 public:
  void split(const TextPiece& piece, PieceSink sink) const override {
    const std::string_view text = piece.text;
    size_t begin = std::string_view::npos;
    uint8_t last = 0;
    for (size_t at = 0; at < text.size();) {
      const Utf8Step step = decode_utf8(text.substr(at));
      const uint8_t script = script_of(step.code_point);
      if (script != 0 && script != last) {
        hand_on(piece, begin, at, sink);
        begin = at;
        last = script;
      }
      at += static_cast<size_t>(step.length);
    }
    hand_on(piece, begin, text.size(), sink);
  }

 private:
  static void hand_on(const TextPiece& piece, size_t begin, size_t end, PieceSink sink) {
    if (begin < end) sink({piece.text.substr(begin, end - begin), piece.starts_input && begin == 0});
  }
};

class PreTokenizerSequence final : public PreTokenizer {
 public:
  explicit PreTokenizerSequence(std::vector<std::unique_ptr<PreTokenizer>> steps) : steps_(std::move(steps)) {}

  void split(const TextPiece& piece, PieceSink sink) const override { run(0, piece, sink); }
  std::vector<KnownPattern> patterns() const override {
    std::vector<KnownPattern> all;
    for (const auto& step : steps_) {
      const std::vector<KnownPattern> patterns = step->patterns();
      if (patterns.empty()) return {};
      all.insert(all.end(), patterns.begin(), patterns.end());
    }
    return all;
  }

 private:
  void run(size_t step, const TextPiece& piece, PieceSink sink) const {
    if (piece.text.empty()) return;
    if (step == steps_.size()) {
      sink(piece);
    } else if (step + 1 == steps_.size()) {
      steps_[step]->split(piece, sink);
    } else {
      steps_[step]->split(piece, [&](const TextPiece& part) { run(step + 1, part, sink); });
    }
  }

  std::vector<std::unique_ptr<PreTokenizer>> steps_;
};

class WholeText final : public PreTokenizer {
 public:
  void split(const TextPiece& piece, PieceSink sink) const override {
    if (!piece.text.empty()) sink(piece);
  }
};

std::unique_ptr<PreTokenizer> make_metaspace(const Json& json, std::string_view where) {
  using Prepend = Metaspace::Prepend;
  // Files from before 0.15 have add_prefix_space instead.
  const bool add_prefix = json_get_or(json, "add_prefix_space", true, where);
  const auto scheme = json_get_or<std::string>(json, "prepend_scheme", add_prefix ? "always" : "never", where);
  Prepend prepend = Prepend::kAlways;
  if (scheme == "first") {
    prepend = Prepend::kFirst;
  } else if (scheme == "never") {
    prepend = Prepend::kNever;
  } else if (scheme != "always") {
    throw UserError(fmt::format("{}: prepend_scheme \"{}\" is unknown", where, scheme));
  }
  return std::make_unique<Metaspace>(read_character(json, "replacement", where), prepend,
                                     json_get_or(json, "split", true, where));
}

}  // namespace

PreTokenizerSpec make_pre_tokenizer(const Json& json, bool keep_bytes, std::string_view where) {
  if (json.is_null()) return {std::make_unique<WholeText>(), false};
  const auto type = json_get<std::string>(json, "type", where);
  if (type == "ByteLevel") {
    std::unique_ptr<PreTokenizer> pattern;
    if (json_get_or(json, "use_regex", true, where)) pattern = make_pattern_split(kGpt2Pattern, where);
    const bool add_prefix_space = json_get_or(json, "add_prefix_space", true, where);
    const bool is_identity = !pattern && !add_prefix_space && keep_bytes;
    return {std::make_unique<ByteLevel>(add_prefix_space, std::move(pattern), keep_bytes), keep_bytes, is_identity};
  }
  if (type == "Metaspace") return {make_metaspace(json, where), false};
  if (type == "UnicodeScripts") return {std::make_unique<UnicodeScripts>(), false};
  if (type == "Sequence") {
    const Json& list = get_member(json, "pretokenizers", where);
    if (!list.is_array()) throw UserError(fmt::format("{}: \"pretokenizers\" is not a list", where));
    std::vector<std::unique_ptr<PreTokenizer>> steps;
    bool is_byte_level = false;
    for (size_t i = 0; i < list.size(); ++i) {
      PreTokenizerSpec spec = make_pre_tokenizer(list[i], keep_bytes && i + 1 == list.size(), where);
      is_byte_level = spec.is_byte_level;
      if (!spec.is_identity || steps.empty()) steps.push_back(std::move(spec.pre_tokenizer));
    }
    if (steps.size() == 1) return {std::move(steps.front()), is_byte_level};
    return {std::make_unique<PreTokenizerSequence>(std::move(steps)), is_byte_level};
  }
  if (auto split = make_split(type, json, where)) return {std::move(split), false};
  throw UserError(fmt::format("{}: pre_tokenizer \"{}\" is not supported", where, type),
                  "supported are Split, ByteLevel, Metaspace, Digits, Punctuation, Whitespace, WhitespaceSplit, "
                  "BertPreTokenizer, CharDelimiterSplit, FixedLength, UnicodeScripts and Sequence");
}

}  // namespace megalith
