// Cuts a piece at matches; shared by all splitting pre-tokenizers.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/utf8.h"

namespace megalith {

// A match is removed, is a piece of its own, joins a neighbour, or joins other matches.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// Joins neighbouring stretches according to the behaviour; emits them one stretch late.
class StretchJoiner {
 public:
  StretchJoiner(const TextPiece& piece, PieceSink sink, SplitBehavior behavior)
      : piece_(piece), sink_(sink), behavior_(behavior) {}

  // Non-empty stretches of the piece, in order, without holes.
  void add(size_t begin, size_t end, bool is_match) {
    bool joins = false;
    switch (behavior_) {
      case SplitBehavior::kRemoved:
        if (!is_match) put(begin, end);
        return;
      case SplitBehavior::kIsolated:
        return put(begin, end);
      case SplitBehavior::kMergedWithPrevious:
        joins = is_match && !last_is_match_;
        break;
      case SplitBehavior::kMergedWithNext:
        joins = last_is_match_ && !is_match;
        break;
      case SplitBehavior::kContiguous:
        joins = is_match == last_is_match_;
        break;
    }
    if (held_ && joins) {
      held_->second = end;
    } else {
      finish();
      held_ = {begin, end};
    }
    last_is_match_ = is_match;
  }
  void finish() {
    if (held_) put(held_->first, held_->second);
    held_.reset();
  }

 private:
  void put(size_t begin, size_t end) {
    sink_({piece_.text.substr(begin, end - begin), piece_.starts_input && begin == 0});
  }

  TextPiece piece_;
  PieceSink sink_;
  SplitBehavior behavior_;
  std::optional<std::pair<size_t, size_t>> held_;
  bool last_is_match_ = false;
};

// Cuts where `test(code point)` holds; each such character is a match.
template <typename Test>
void split_at(const TextPiece& piece, PieceSink sink, SplitBehavior behavior, Test&& test) {
  StretchJoiner joiner(piece, sink, behavior);
  size_t begin = 0;
  for (size_t i = 0; i < piece.text.size();) {
    const Utf8Step step = decode_utf8(piece.text.substr(i));
    const size_t end = i + static_cast<size_t>(step.length);
    if (test(step.code_point)) {
      if (i > begin) joiner.add(begin, i, false);
      joiner.add(i, end, true);
      begin = end;
    }
    i = end;
  }
  if (begin < piece.text.size()) joiner.add(begin, piece.text.size(), false);
  joiner.finish();
}

// A member that holds a single character.
uint32_t read_character(const nlohmann::json& json, const char* key, std::string_view where);

}  // namespace megalith
