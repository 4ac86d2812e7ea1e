// Pre-tokenizers; see pre_tokenizer.h. Semantics are those of Hugging Face's `tokenizers`.
#include "tokenizer/pre_tokenizer.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "core/error.h"
#include "core/json.h"
#include "tokenizer/regex.h"
#include "tokenizer/utf8.h"

namespace megalith {
namespace {

// GPT-2's pattern, which ByteLevel applies with use_regex.
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

class Split final : public PreTokenizer {
 public:
  Split(Regex regex, SplitBehavior behavior, bool invert)
      : regex_(std::move(regex)), behavior_(behavior), invert_(invert) {}

  void split(std::string_view text, PieceSink sink) const override {
    Regex::Scanner scanner(regex_, text);
    Joiner joiner{text, sink, behavior_, {}, false, false};
    size_t previous_end = 0, begin = 0, end = 0;
    while (scanner.next(begin, end)) {
      if (begin > previous_end) joiner.add(previous_end, begin, invert_);
      if (end > begin) joiner.add(begin, end, !invert_);
      // An empty match still cuts the text where it stands.
      previous_end = end;
    }
    if (previous_end < text.size()) joiner.add(previous_end, text.size(), invert_);
    joiner.finish();
  }

 private:
  // Joins neighbouring stretches as the behaviour says and hands them on one stretch late.
  struct Joiner {
    std::string_view text;
    PieceSink sink;
    SplitBehavior behavior;
    std::optional<std::pair<size_t, size_t>> held;
    bool held_is_match, previous_is_match;

    void add(size_t begin, size_t end, bool is_match) {
      bool joins = false;
      switch (behavior) {
        case SplitBehavior::kRemoved:
          if (!is_match) sink(text.substr(begin, end - begin));
          return;
        case SplitBehavior::kIsolated:
          sink(text.substr(begin, end - begin));
          return;
        case SplitBehavior::kMergedWithPrevious:
          joins = is_match && !previous_is_match;
          break;
        case SplitBehavior::kMergedWithNext:
          joins = held_is_match && !is_match;
          break;
        case SplitBehavior::kContiguous:
          joins = is_match == held_is_match;
          break;
      }
      if (held && joins) {
        held->second = end;
      } else {
        finish();
        held = {begin, end};
      }
      held_is_match = previous_is_match = is_match;
    }
    void finish() {
      if (held) sink(text.substr(held->first, held->second - held->first));
      held.reset();
    }
  };

  Regex regex_;
  SplitBehavior behavior_;
  bool invert_;
};

// Digits: runs of numeric characters, or each alone, are pieces of their own.
class Digits final : public PreTokenizer {
 public:
  explicit Digits(bool individual) : individual_(individual) {}

  void split(std::string_view text, PieceSink sink) const override {
    size_t begin = 0;
    bool in_digits = false;
    for (size_t i = 0; i < text.size();) {
      const Utf8Step step = decode_utf8(text.substr(i));
      const bool is_digit = is_numeric(step.code_point);
      if (i > begin && (is_digit != in_digits || (is_digit && individual_))) {
        sink(text.substr(begin, i - begin));
        begin = i;
      }
      in_digits = is_digit;
      i += static_cast<size_t>(step.length);
    }
    if (begin < text.size()) sink(text.substr(begin));
  }

 private:
  bool individual_;
};

// ByteLevel: a leading space if asked, and GPT-2's pattern if asked.
class ByteLevel final : public PreTokenizer {
 public:
  ByteLevel(bool add_prefix_space, std::unique_ptr<PreTokenizer> pattern)
      : add_prefix_space_(add_prefix_space), pattern_(std::move(pattern)) {}

  void split(std::string_view text, PieceSink sink) const override {
    if (text.empty()) return;
    std::string with_space;
    if (add_prefix_space_ && text.front() != ' ') {
      with_space = fmt::format(" {}", text);
      text = with_space;
    }
    if (pattern_) {
      pattern_->split(text, sink);
    } else {
      sink(text);
    }
  }

 private:
  bool add_prefix_space_;
  std::unique_ptr<PreTokenizer> pattern_;
};

class Sequence final : public PreTokenizer {
 public:
  explicit Sequence(std::vector<std::unique_ptr<PreTokenizer>> steps) : steps_(std::move(steps)) {}

  void split(std::string_view text, PieceSink sink) const override { run(0, text, sink); }

 private:
  void run(size_t step, std::string_view text, PieceSink sink) const {
    if (text.empty()) return;
    if (step == steps_.size()) {
      sink(text);
    } else {
      steps_[step]->split(text, [&](std::string_view piece) { run(step + 1, piece, sink); });
    }
  }

  std::vector<std::unique_ptr<PreTokenizer>> steps_;
};

class WholeText final : public PreTokenizer {
 public:
  void split(std::string_view text, PieceSink sink) const override {
    if (!text.empty()) sink(text);
  }
};

std::unique_ptr<PreTokenizer> make_split(const Json& json, std::string_view where) {
  const Json& pattern = get_member(json, "pattern", where);
  std::string expression;
  if (const Json* regex = find_member(pattern, "Regex", where)) {
    expression = json_as<std::string>(*regex, fmt::format("{}: pattern.Regex", where));
  } else {
    expression = escape_regex(json_get<std::string>(pattern, "String", where));
  }
  const auto word = json_get<std::string>(json, "behavior", where);
  constexpr std::string_view kWords[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
  for (int i = 0; i < 5; ++i) {
    if (word == kWords[i]) {
      return std::make_unique<Split>(Regex(expression, where), static_cast<SplitBehavior>(i),
                                     json_get_or(json, "invert", false, where));
    }
  }
  throw UserError(fmt::format("{}: split behavior \"{}\" is unknown", where, word));
}

}  // namespace

PreTokenizerSpec make_pre_tokenizer(const Json& json, std::string_view where) {
  if (json.is_null()) return {std::make_unique<WholeText>(), false};
  const auto type = json_get<std::string>(json, "type", where);
  if (type == "Split") return {make_split(json, where), false};
  if (type == "Digits") {
    return {std::make_unique<Digits>(json_get_or(json, "individual_digits", false, where)), false};
  }
  if (type == "ByteLevel") {
    std::unique_ptr<PreTokenizer> pattern;
    if (json_get_or(json, "use_regex", true, where)) {
      pattern = std::make_unique<Split>(Regex(kGpt2Pattern, where), SplitBehavior::kIsolated, false);
    }
    return {std::make_unique<ByteLevel>(json_get_or(json, "add_prefix_space", true, where), std::move(pattern)), true};
  }
  if (type == "Sequence") {
    std::vector<std::unique_ptr<PreTokenizer>> steps;
    bool is_byte_level = false;
    for (const Json& step : get_member(json, "pretokenizers", where)) {
      if (is_byte_level) {
        throw UserError(fmt::format("{}: pre_tokenizer steps after ByteLevel are not supported", where));
      }
      PreTokenizerSpec spec = make_pre_tokenizer(step, where);
      steps.push_back(std::move(spec.pre_tokenizer));
      is_byte_level = spec.is_byte_level;
    }
    return {std::make_unique<Sequence>(std::move(steps)), is_byte_level};
  }
  throw UserError(fmt::format("{}: pre_tokenizer \"{}\" is not supported", where, type),
                  "supported are Split, Digits, ByteLevel and Sequence");
}

}  // namespace megalith
