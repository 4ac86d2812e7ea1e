// Normalizers: rewrite a text before it is cut into pieces. The components of tokenizer.json's "normalizer".
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace megalith {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  virtual std::string normalize(std::string_view text) const = 0;  // text is valid UTF-8
};

// Reads the component: NFC, NFD, NFKC, NFKD, Sequence; nullptr when it changes nothing. UserError for one that is not
// supported, naming it and `where`.
std::unique_ptr<Normalizer> make_normalizer(const nlohmann::json& json, std::string_view where);

}  // namespace megalith
