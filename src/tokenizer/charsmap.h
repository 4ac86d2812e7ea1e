// SentencePiece's precompiled map of characters: which byte strings become which others, found by longest prefix.
//
// Form: u32 size of the trie in bytes, the trie as a double array of u32 units (Darts), then the replacements as
// strings that end in a zero byte. The units come from a file, so every step checks its index.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megalith {

class Charsmap {
 public:
  Charsmap() = default;  // maps nothing
  // `where` names the file in the UserError for a blob that does not fit together.
  Charsmap(std::string_view blob, std::string_view where);

  struct Match {
    size_t length = 0;  // 0: nothing in the map begins the text
    std::string_view replacement;
  };
  Match longest_prefix(std::string_view text) const;
  Match shortest_prefix(std::string_view text) const;

 private:
  template <typename OnMatch>
  void walk(std::string_view text, OnMatch&& on_match) const;
  std::string_view replacement_at(uint32_t offset) const;

  std::vector<uint32_t> units_;
  std::string replacements_;
};

}  // namespace megalith
