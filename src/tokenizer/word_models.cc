// tokenizer.json's models WordPiece (repeatedly the longest known prefix; Schuster and Nakajima 2012) and WordLevel
// (whole words).
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json.h"
#include "tokenizer/byte_trie.h"
#include "tokenizer/piece_cache.h"
#include "tokenizer/token_model.h"
#include "tokenizer/utf8.h"

namespace megalith {
namespace {

[[noreturn]] void fail_unknown(std::string_view word, const std::string& unk_token) {
  throw UserError(
      fmt::format("the tokenizer has no token for \"{}\", and its unknown token \"{}\" is not in its "
                  "vocabulary",
                  word, unk_token));
}

class WordPiece final : public TokenModel {
 public:
  WordPiece(const TokenList& tokens, std::string unk_token, std::string_view prefix, int64_t max_characters)
      : vocabulary_(tokens),
        unk_token_(std::move(unk_token)),
        unk_id_(vocabulary_.find(unk_token_)),
        max_characters_(max_characters),
        owner_(PieceCache::new_owner()) {
    for (const auto& [token, id] : tokens) {
      if (token.empty()) continue;
      beginnings_.insert(token, id);
      if (token.size() > prefix.size() && token.starts_with(prefix)) {
        continuations_.insert(std::string_view(token).substr(prefix.size()), id);
      }
    }
  }

  void encode(std::string_view piece, std::vector<int32_t>& ids) const override {
    PieceCache::encode(owner_, piece, ids, [&](std::vector<int32_t>& out) { cut(piece, out); });
  }
  const Vocabulary& vocabulary() const override { return vocabulary_; }

 private:
  void cut(std::string_view word, std::vector<int32_t>& ids) const {
    const size_t before = ids.size();
    int64_t num_characters = 0;
    for (size_t i = 0; i < word.size(); i += utf8_length(word[i])) ++num_characters;
    bool is_known = num_characters <= max_characters_;
    for (size_t begin = 0; is_known && begin < word.size();) {
      const ByteTrie::Match match = (begin == 0 ? beginnings_ : continuations_).longest_prefix(word.substr(begin));
      is_known = match.value >= 0;
      ids.push_back(match.value);
      begin += match.length;
    }
    if (is_known) return;
    ids.resize(before);
    if (unk_id_ < 0) fail_unknown(word, unk_token_);
    ids.push_back(unk_id_);
  }

  Vocabulary vocabulary_;
  ByteTrie beginnings_, continuations_;
  std::string unk_token_;
  int32_t unk_id_;
  int64_t max_characters_;
  uint32_t owner_;
};

class WordLevel final : public TokenModel {
 public:
  WordLevel(const TokenList& tokens, std::string unk_token)
      : vocabulary_(tokens), unk_token_(std::move(unk_token)), unk_id_(vocabulary_.find(unk_token_)) {}

  void encode(std::string_view piece, std::vector<int32_t>& ids) const override {
    int32_t id = vocabulary_.find(piece);
    if (id < 0) id = unk_id_;
    if (id < 0) fail_unknown(piece, unk_token_);
    ids.push_back(id);
  }
  const Vocabulary& vocabulary() const override { return vocabulary_; }

 private:
  Vocabulary vocabulary_;
  std::string unk_token_;
  int32_t unk_id_;
};

}  // namespace

std::unique_ptr<TokenModel> make_word_piece(const Json& json, std::string_view where) {
  return std::make_unique<WordPiece>(read_vocab(json, where),
                                     json_get_or<std::string>(json, "unk_token", "[UNK]", where),
                                     json_get_or<std::string>(json, "continuing_subword_prefix", "##", where),
                                     json_get_or<int64_t>(json, "max_input_chars_per_word", 100, where));
}

std::unique_ptr<TokenModel> make_word_level(const Json& json, std::string_view where) {
  return std::make_unique<WordLevel>(read_vocab(json, where),
                                     json_get_or<std::string>(json, "unk_token", "<unk>", where));
}

}  // namespace megalith
