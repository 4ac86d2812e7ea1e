// Added tokens: cut out of a text before everything else ("<|begin_of_text|>", or any text a user added).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/byte_trie.h"

namespace megalith {

struct AddedToken {
  int32_t id = -1;
  std::string content;
  bool single_word = false;  // only if no word character touches it
  bool lstrip = false;       // takes the blanks before it
  bool rstrip = false;       // takes the blanks after it
  bool normalized = false;   // searched after normalisation, not before
  bool special = false;
};

// Finds the tokens of a set, leftmost and longest first.
class AddedTokenMatcher {
 public:
  explicit AddedTokenMatcher(std::vector<AddedToken> tokens);

  // Calls on_text(view, is_beginning_of_text) and on_token(id) for the stretches of the text, in order.
  template <typename OnText, typename OnToken>
  void split(std::string_view text, OnText&& on_text, OnToken&& on_token) const {
    size_t done = 0;
    for (Match match; find(text, done, match);) {
      if (match.begin > done) on_text(text.substr(done, match.begin - done), done == 0);
      on_token(match.id);
      done = match.end;
    }
    if (done < text.size()) on_text(text.substr(done), done == 0);
  }

 private:
  struct Match {
    size_t begin = 0, end = 0;
    int32_t id = -1;
  };
  bool find(std::string_view text, size_t from, Match& match) const;
  size_t next_candidate(std::string_view text, size_t from) const;

  std::vector<AddedToken> tokens_;
  ByteTrie trie_;            // content → index in tokens_
  std::string first_bytes_;  // first bytes of the tokens
};

}  // namespace megalith
