// Decoders: tokens back to text. The components of tokenizer.json's "decoder".
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace megalith {

class TokenDecoder {
 public:
  virtual ~TokenDecoder() = default;
  // Rewrites the tokens; their concatenation is the text.
  virtual void apply(std::vector<std::string>& tokens) const = 0;
};

// Reads the component. UserError for an unknown one, naming it and `where`.
std::unique_ptr<TokenDecoder> make_token_decoder(const nlohmann::json& json, std::string_view where);

// The byte of a token such as <0x2A>, or -1.
int fallback_byte(std::string_view token);

}  // namespace megalith
