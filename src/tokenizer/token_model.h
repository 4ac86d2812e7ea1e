// What turns a piece of text into tokens: the component "model" of tokenizer.json (BPE here; WordPiece and Unigram have
// the same shape).
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string_view>
#include <vector>

#include "tokenizer/vocabulary.h"

namespace megalith {

class TokenModel {
 public:
  virtual ~TokenModel() = default;
  // Appends the ids of one piece. Safe from several threads.
  virtual void encode(std::string_view piece, std::vector<int32_t>& ids) const = 0;
  virtual const Vocabulary& vocabulary() const = 0;
};

// Byte-pair encoding over bytes. `json` is the component with "vocab" and "merges" spelt in ByteLevel's printable
// alphabet. UserError, naming `where`, for what is malformed or not supported.
std::unique_ptr<TokenModel> make_byte_level_bpe(const nlohmann::json& json, std::string_view where);

}  // namespace megalith
