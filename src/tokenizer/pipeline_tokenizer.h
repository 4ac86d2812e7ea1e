// The tokenizer used by most formats: cuts out added tokens, normalises the rest, cuts it into pieces and encodes them
// with a model; a decoder turns tokens back into text. The stages are tokenizer.json's.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tokenizer/added_tokens.h"
#include "tokenizer/known_pattern.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/post_processor.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/special_ids.h"
#include "tokenizer/token_decoder.h"
#include "tokenizer/token_model.h"
#include "tokenizer/tokenizer.h"

namespace megalith {

class PipelineTokenizer final : public Tokenizer {
 public:
  struct Parts {
    std::string name;
    std::vector<AddedToken> added;
    bool finds_added = true;                 // in a text; else they are only decoded
    std::unique_ptr<Normalizer> normalizer;  // may be null
    std::unique_ptr<PreTokenizer> pre_tokenizer;
    bool is_byte_level = false;  // the vocabulary holds bytes, not their spelling
    std::unique_ptr<TokenModel> model;
    std::unique_ptr<TokenDecoder> decoder;  // null: tokens are joined by blanks, unless …
    bool decodes_bytes = false;             // … the bytes of the model's tokens are the text
    TokenFrame frame;
    SpecialIds special;
  };
  explicit PipelineTokenizer(Parts parts);

  std::vector<int32_t> encode(std::string_view text, bool add_special) const override;
  void encode_in_runs(std::string_view text, bool add_special, const OnIds& on_ids) const override;
  std::string decode(std::span<const int32_t> ids, bool skip_special) const override;
  bool is_special(int32_t id) const override;
  bool has_token(int32_t id) const override;
  int64_t vocab_size() const override { return vocab_size_; }
  const SpecialIds& special_ids() const override { return parts_.special; }
  std::string name() const override { return parts_.name; }

 private:
  void append_ids(std::string_view text, bool add_special, std::vector<int32_t>& ids, const OnIds* on_ids) const;
  template <typename PutPiece, typename PutAll>
  void cut(const TextPiece& text, const PutPiece& put_piece, const PutAll& put_all) const;
  std::string spelling(int32_t id) const;

  Parts parts_;
  FindEnds find_ends_;  // null: the pre-tokenizer passes pieces on one by one
  AddedTokenMatcher raw_matcher_, normalized_matcher_;
  std::map<int32_t, AddedToken> added_by_id_;
  int64_t vocab_size_;
};

}  // namespace megalith
