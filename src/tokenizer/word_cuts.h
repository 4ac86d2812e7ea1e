// Finds cuts in a text with visible blanks (▁, U+2581) that do not change the tokens of byte-pair encoding: before a ▁
// that follows another character, if no token of the vocabulary contains such a place. A document becomes words that a
// cache can remember.
#pragma once

#include <string_view>

namespace megalith {

inline constexpr std::string_view kWordMark = "\u2581";

// The first ▁ at or after `from` that follows another character; npos if there is none.
inline size_t find_word_cut(std::string_view text, size_t from) {
  for (size_t at = text.find(kWordMark, from); at != std::string_view::npos; at = text.find(kWordMark, at + 1)) {
    if (at > 0 && !text.substr(0, at).ends_with(kWordMark)) return at;
  }
  return std::string_view::npos;
}

inline bool has_inner_word(std::string_view token) { return find_word_cut(token, 0) != std::string_view::npos; }

template <typename OnWord>
void for_each_word(std::string_view text, OnWord&& on_word) {
  for (size_t begin = 0; begin < text.size();) {
    size_t end = find_word_cut(text, begin + 1);
    if (end == std::string_view::npos) end = text.size();
    on_word(text.substr(begin, end - begin));
    begin = end;
  }
}

}  // namespace megalith
