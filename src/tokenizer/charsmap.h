// SentencePiece's precompiled map of characters: replacements of byte strings, found by longest prefix.
//
// Format: u32 size of the trie in bytes, the trie as a double array of u32 units (Darts), then the zero-terminated
// replacements. The units come from a file, so every step checks its index. Whole characters of UTF-8 are replaced by
// whole ones.
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
  // UserError, naming the file `where`, for an inconsistent blob.
  Charsmap(std::string_view blob, std::string_view where);

  struct Match {
    size_t length = 0;  // 0: no entry is a prefix of the text
    std::string_view replacement;
  };
  Match longest_prefix(std::string_view text) const;
  Match shortest_prefix(std::string_view text) const;
  // True if an entry begins the text, or the text an entry.
  bool touches(std::string_view text) const;

 private:
  template <typename OnMatch>
  bool walk(std::string_view text, OnMatch&& on_match) const;
  std::string_view replacement_at(uint32_t offset) const;

  std::vector<uint32_t> units_;
  std::string replacements_;
};

}  // namespace megalith
