// SentencePiece's processing of a text: normalising, and cutting into pieces.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/byte_trie.h"
#include "tokenizer/charsmap.h"
#include "tokenizer/merge_table.h"
#include "tokenizer/piece_cache.h"
#include "tokenizer/sentencepiece_model.h"

namespace megalith {

class SentencePieceNormalizer {
 public:
  // user_symbols  texts left unchanged; may be null, else must outlive this object
  SentencePieceNormalizer(const SentencePieceRules& rules, bool whitespace_as_suffix, const ByteTrie* user_symbols,
                          std::string_view where);
  std::string normalize(std::string_view text) const;

 private:
  // The replacement of a prefix of `text`, and the prefix's length.
  std::string_view prefix(std::string_view text, size_t& length) const;
  void find_steady();
  // The length of the text's beginning that certainly stays as it is, without a blank.
  size_t steady_length(std::string_view text) const;

  Charsmap map_;
  bool add_dummy_prefix_, remove_extra_whitespaces_, escape_whitespaces_, whitespace_as_suffix_;
  const ByteTrie* user_symbols_;
  // Characters that stay as they are: of ASCII, by code, before more ASCII; of the others below 2^16 before anything.
  std::array<bool, 128> steady_ascii_{};
  std::vector<bool> steady_;
};

class SentencePieceEncoder {
 public:
  // The model must outlive the encoder. `where` names the file in UserErrors.
  SentencePieceEncoder(const SentencePieceModel& model, std::string_view where);
  SentencePieceEncoder(const SentencePieceEncoder&) = delete;
  SentencePieceEncoder& operator=(const SentencePieceEncoder&) = delete;

  // Appends the ids of a text, which is valid UTF-8. on_word  called whenever earlier ids may be taken out of `ids`
  void encode(std::string_view text, std::vector<int32_t>& ids, const std::function<void()>& on_word = {}) const;

 private:
  struct Run;  // collects ids: fuses unknown pieces, or spells them in bytes
  void encode_unigram(std::string_view text, Run& run) const;
  void encode_bpe(std::string_view text, Run& run) const;
  void encode_bpe_words(std::string_view text, std::vector<int32_t>& ids, const std::function<void()>& on_word) const;
  size_t find_cut(std::string_view text, size_t from) const;
  void encode_words(std::string_view text, Run& run) const;
  void make_merges();
  void put_symbol(int32_t symbol, std::string_view text, Run& run) const;
  int32_t find(std::string_view piece) const;

  const SentencePieceModel& model_;
  ByteTrie user_symbols_, pieces_, reserved_;
  SentencePieceNormalizer normalizer_;
  int32_t unk_id_ = 0;
  std::vector<int32_t> byte_ids_;
  float lowest_score_ = 0;
  std::vector<float> scores_;  // by id, for unigram
  std::unique_ptr<MergeTable> merges_;  // byte-pair encoding: over ids of pieces, and of characters that are not pieces
  ByteTrie characters_;                 // ids above the pieces' for characters that are only part of pieces
  bool can_cut_ = false;
  std::vector<bool> inner_pairs_;  // by hash: neighbours within some piece, see find_cut
  uint32_t cache_owner_ = PieceCache::new_owner();
};

}  // namespace megalith
