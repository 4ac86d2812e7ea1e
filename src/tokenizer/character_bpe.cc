// Byte-pair encoding over characters; merging is in merge_table.h. Rules as in Hugging Face's `tokenizers`.
#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/json.h"
#include "tokenizer/bpe_merges.h"
#include "tokenizer/piece_cache.h"
#include "tokenizer/token_model.h"
#include "tokenizer/utf8.h"
#include "tokenizer/word_cuts.h"

namespace megalith {
namespace {

class CharacterBpe final : public TokenModel {
 public:
  struct Options {
    bool ignore_merges = false, byte_fallback = false, fuse_unk = false;
    int32_t unk_id = -1;
    std::string prefix, suffix;  // of all of a word's characters but the first; of its last
  };

  CharacterBpe(Vocabulary vocabulary, MergeTable merges, bool can_cut, Options options)
      : vocabulary_(std::move(vocabulary)),
        merges_(std::move(merges)),
        can_cut_(can_cut),
        options_(std::move(options)),
        owner_(PieceCache::new_owner()) {
    for (size_t byte = 0; byte < 256; ++byte) byte_ids_[byte] = vocabulary_.find(fmt::format("<0x{:02X}>", byte));
  }

  void encode(std::string_view piece, std::vector<int32_t>& ids) const override {
    if (options_.ignore_merges) {
      if (const int32_t whole = vocabulary_.find(piece); whole >= 0) {
        ids.push_back(whole);
        return;
      }
    }
    const auto encode_word = [&](std::string_view word) {
      PieceCache::encode(owner_, word, ids, [&](std::vector<int32_t>& out) { merge(word, out); });
    };
    if (can_cut_) {
      for_each_word(piece, encode_word);
    } else {
      encode_word(piece);
    }
  }

  const Vocabulary& vocabulary() const override { return vocabulary_; }
  size_t find_cut(std::string_view piece, size_t from) const override {
    return can_cut_ ? std::min(find_word_cut(piece, from), piece.size()) : piece.size();
  }

 private:
  void merge(std::string_view word, std::vector<int32_t>& ids) const {
    const size_t before = ids.size();
    bool has_unknown = false;  // an unknown token precedes the next known one
    const auto flush = [&] {
      if (has_unknown) ids.push_back(options_.unk_id);
      has_unknown = false;
    };
    std::string spelling;
    for (size_t i = 0; i < word.size();) {
      std::string_view character = word.substr(i, utf8_length(word[i]));
      const size_t next = i + character.size();
      const bool has_prefix = i > 0 && !options_.prefix.empty();
      const bool has_suffix = next == word.size() && !options_.suffix.empty();
      if (has_prefix || has_suffix) {
        spelling = has_prefix ? options_.prefix : "";
        spelling += character;
        if (has_suffix) spelling += options_.suffix;
        character = spelling;
      }
      i = next;
      if (const int32_t id = vocabulary_.find(character); id >= 0) {
        flush();
        ids.push_back(id);
        continue;
      }
      // With byte tokens a pending unknown one stays pending, as in the library.
      if (options_.byte_fallback && put_bytes(character, ids)) continue;
      if (options_.unk_id < 0) continue;
      if (!options_.fuse_unk) flush();
      has_unknown = true;
    }
    flush();
    ids.resize(before + merges_.merge(ids.data() + before, ids.size() - before));
  }

  bool put_bytes(std::string_view character, std::vector<int32_t>& ids) const {
    for (const char c : character) {
      if (byte_ids_[static_cast<uint8_t>(c)] < 0) return false;
    }
    for (const char c : character) ids.push_back(byte_ids_[static_cast<uint8_t>(c)]);
    return true;
  }

  Vocabulary vocabulary_;
  MergeTable merges_;
  bool can_cut_;
  Options options_;
  uint32_t owner_;
  std::array<int32_t, 256> byte_ids_;
};

}  // namespace

std::unique_ptr<TokenModel> make_character_bpe(const Json& json, std::string_view where) {
  const TokenList tokens = read_vocab(json, where);
  Vocabulary vocabulary(tokens);
  CharacterBpe::Options options{.ignore_merges = json_get_or(json, "ignore_merges", false, where),
                                .byte_fallback = json_get_or(json, "byte_fallback", false, where),
                                .fuse_unk = json_get_or(json, "fuse_unk", false, where),
                                .prefix = json_get_or<std::string>(json, "continuing_subword_prefix", "", where),
                                .suffix = json_get_or<std::string>(json, "end_of_word_suffix", "", where)};
  if (const auto unk = json_find<std::string>(json, "unk_token", where)) options.unk_id = vocabulary.find(*unk);
  size_t prefix_length = 0;  // in characters, as the library counts it
  for (size_t i = 0; i < options.prefix.size(); i += utf8_length(options.prefix[i])) ++prefix_length;
  MergeTable merges = read_merges(json, vocabulary, prefix_length, where);

  bool can_cut = options.prefix.empty() && options.suffix.empty() && vocabulary.find(kWordMark) >= 0;
  for (const auto& [token, id] : tokens) can_cut = can_cut && !has_inner_word(token);
  return std::make_unique<CharacterBpe>(std::move(vocabulary), std::move(merges), can_cut, std::move(options));
}

}  // namespace megalith
