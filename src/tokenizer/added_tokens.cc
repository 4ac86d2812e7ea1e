// Added tokens; see added_tokens.h. Rules as in Hugging Face's `tokenizers` (added_vocabulary.rs).
#include "tokenizer/added_tokens.h"

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

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const std::string& content = tokens_[i].content;
    if (content.empty()) continue;
    trie_.insert(content, static_cast<int32_t>(i));
    if (first_bytes_.find(content[0]) == std::string::npos) first_bytes_ += content[0];
  }
}

size_t AddedTokenMatcher::next_candidate(std::string_view text, size_t from) const {
  if (first_bytes_.size() == 1) return text.find(first_bytes_[0], from);
  const auto begins = [&](char c) {
    return trie_.step(ByteTrie::kRoot, static_cast<uint8_t>(c)).node != ByteTrie::kNone;
  };
  while (from < text.size() && !begins(text[from])) ++from;
  return from;
}

bool AddedTokenMatcher::find(std::string_view text, size_t from, Match& match) const {
  if (trie_.is_empty()) return false;
  for (size_t i = next_candidate(text, from); i < text.size(); i = next_candidate(text, i + 1)) {
    const ByteTrie::Match found = trie_.longest_prefix(text.substr(i));
    if (found.value < 0) continue;
    const AddedToken& token = tokens_[static_cast<size_t>(found.value)];
    match = {i, i + found.length, token.id};
    const bool touches_word =
        token.single_word && ((i > 0 && is_word_at(text, last_character(text, i))) || is_word_at(text, match.end));
    if (touches_word) {
      i = match.end - 1;  // the search continues after it; a shorter token inside is not tried
      continue;
    }
    while (token.lstrip && match.begin > from) {
      const size_t before = last_character(text, match.begin);
      if (!is_space(decode_utf8(text.substr(before)).code_point)) break;
      match.begin = before;
    }
    while (token.rstrip && match.end < text.size()) {
      const Utf8Step step = decode_utf8(text.substr(match.end));
      if (!is_space(step.code_point)) break;
      match.end += static_cast<size_t>(step.length);
    }
    return true;
  }
  return false;
}

}  // namespace megalith
