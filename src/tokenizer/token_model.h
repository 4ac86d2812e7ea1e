// Turns a piece of text into tokens: the component "model" of tokenizer.json.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/vocabulary.h"

namespace megalith {

class TokenModel {
 public:
  virtual ~TokenModel() = default;
  // Appends the ids of one non-empty piece. Thread-safe.
  virtual void encode(std::string_view piece, std::vector<int32_t>& ids) const = 0;
  // The same for the pieces text[begin, ends[0]), text[ends[0], ends[1]) ….
  virtual void encode_all(std::string_view text, size_t begin, std::span<const size_t> ends,
                          std::vector<int32_t>& ids) const {
    for (const size_t end : ends) {
      encode(text.substr(begin, end - begin), ids);
      begin = end;
    }
  }
  virtual const Vocabulary& vocabulary() const = 0;
  // The first offset at or after `from` (above 0) where the piece can be cut without changing its ids; its end if none
  // is known.
  virtual size_t find_cut(std::string_view piece, size_t from) const { return piece.size(); }
};

// Upper bound for ids from a file: far above any vocabulary, it keeps a hostile id from claiming memory.
inline constexpr int64_t kMaxTokenId = 1 << 26;

using TokenList = std::vector<std::pair<std::string, int32_t>>;
// The member "vocab", {token: id, …}, of all models but Unigram. UserError for ids that are negative, too large or
// duplicated.
TokenList read_vocab(const nlohmann::json& model, std::string_view where);

// Byte-pair encoding over bytes. `json` is the component with "vocab" and "merges" spelt in ByteLevel's printable
// alphabet. UserError, naming `where`, if malformed.
std::unique_ptr<TokenModel> make_byte_level_bpe(const nlohmann::json& json, std::string_view where);
// True if a BPE component can be read that way: nothing in it depends on characters.
bool can_be_byte_level(const nlohmann::json& json, std::string_view where);
// Byte-pair encoding as in tiktoken: a pair's rank is that of the token it makes. tokens[i] has rank i and the id
// first_id + i.
std::unique_ptr<TokenModel> make_rank_bpe(const std::vector<std::string>& tokens, int32_t first_id,
                                          std::string_view where);

// Byte-pair encoding over characters, with byte_fallback, continuation prefixes and end-of-word suffixes.
std::unique_ptr<TokenModel> make_character_bpe(const nlohmann::json& json, std::string_view where);
std::unique_ptr<TokenModel> make_unigram(const nlohmann::json& json, std::string_view where);
std::unique_ptr<TokenModel> make_word_piece(const nlohmann::json& json, std::string_view where);
std::unique_ptr<TokenModel> make_word_level(const nlohmann::json& json, std::string_view where);

}  // namespace megalith
