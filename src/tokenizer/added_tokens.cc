// Added tokens; see added_tokens.h. Rules as in Hugging Face's `tokenizers` (added_vocabulary.rs).
#include "tokenizer/added_tokens.h"

#include <algorithm>

#include "tokenizer/utf8.h"

namespace megalith {
namespace {

size_t last_character(std::string_view text, size_t end) {
  size_t start = end - 1;
  while (start > 0 && (static_cast<uint8_t>(text[start]) & 0xC0) == 0x80) --start;
  return start;
}

bool is_word_at(std::string_view text, size_t position) {
  return position < text.size() && is_word(decode_utf8(text.substr(position)).code_point);
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens) {
  for (AddedToken& token : tokens) {
    if (token.content.empty()) continue;
    is_empty_ = false;
    by_first_byte_[static_cast<uint8_t>(token.content[0])].push_back(std::move(token));
  }
  for (auto& list : by_first_byte_) {
    std::stable_sort(list.begin(), list.end(),
                     [](const AddedToken& a, const AddedToken& b) { return a.content.size() > b.content.size(); });
  }
}

bool AddedTokenMatcher::find(std::string_view text, size_t from, Match& match) const {
  if (is_empty_) return false;
  for (size_t i = from; i < text.size(); ++i) {
    for (const AddedToken& token : by_first_byte_[static_cast<uint8_t>(text[i])]) {
      if (!text.substr(i).starts_with(token.content)) continue;
      match = {i, i + token.content.size(), token.id};
      const bool touches_word = (i > 0 && is_word_at(text, last_character(text, i))) || is_word_at(text, match.end);
      if (token.single_word && touches_word) {
        i = match.end - 1;  // the search goes on behind it; a shorter token inside is not tried
        break;
      }
      if (token.lstrip) {
        while (match.begin > from) {
          const size_t before = last_character(text, match.begin);
          if (!is_space(decode_utf8(text.substr(before)).code_point)) break;
          match.begin = before;
        }
      }
      if (token.rstrip) {
        while (match.end < text.size()) {
          const Utf8Step step = decode_utf8(text.substr(match.end));
          if (!is_space(step.code_point)) break;
          match.end += static_cast<size_t>(step.length);
        }
      }
      return true;
    }
  }
  return false;
}

}  // namespace megalith
