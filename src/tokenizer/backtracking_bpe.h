// Byte-pair encoding in linear time, without merging: from left to right, the longest token that may follow the one
// before it is taken, and where none may, the one before is taken back and a shorter one tried.
//
// Merging by ranks gives the tokens t1 … tn if and only if merging the text of every two neighbours gives these two:
// as long as no merge crosses a border, what happens left and right of it does not depend on anything beyond. So the
// answer is unique, and a pair can be judged by itself, by undoing its merges from the last to the first and asking of
// each two symbols that met at the border whether they would have merged then. Source of the idea: van Antwerpen and
// Neubeck, "So many tokens, so little time", GitHub 2024 (the crate bpe).
//
// When a token is made follows from the merges inside it: pairs merge by rank, so everything that ranks up to r is done
// before anything above r begins. A token's phase is therefore the largest rank inside it. (Its own merge may rank
// lower: tiktoken's vocabularies have such.) The order of two merges in one phase is known if both rank as the phase;
// other such pairs of tokens, which are rare, are merged to see what they give.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "tokenizer/byte_trie.h"
#include "tokenizer/merge_table.h"
#include "tokenizer/vocabulary.h"

namespace megalith {

class BacktrackingBpe {
 public:
  // Every byte has a token: byte_ids. All must outlive the object.
  BacktrackingBpe(const MergeTable& merges, const Vocabulary& vocabulary, const std::array<int32_t, 256>& byte_ids);

  // Appends the ids of a piece, those that merging gives.
  void encode(std::string_view piece, std::vector<int32_t>& ids) const;

 private:
  static constexpr uint32_t kNever = UINT32_MAX;
  struct Token {
    int32_t left = -1, right = -1;  // what its own bytes are merged from at last
    uint32_t phase = kNever;        // 0: a byte; else 1 and the largest rank inside; kNever: its bytes do not give it
    uint32_t length = 0;
    int32_t shorter = -1;   // the longest token that begins it
    bool is_plain = false;  // its own merge has the largest rank inside
  };
  const Token& token(int32_t id) const { return tokens_[static_cast<size_t>(id)]; }
  std::vector<int32_t> bytes_of(int32_t id) const;
  bool stay_apart(int32_t first, int32_t second) const;
  bool stay_apart_when_merged(int32_t first, int32_t second) const;

  const MergeTable& merges_;
  const Vocabulary& vocabulary_;
  const std::array<int32_t, 256>& byte_ids_;
  std::vector<Token> tokens_;
  ByteTrie trie_;
};

}  // namespace megalith
