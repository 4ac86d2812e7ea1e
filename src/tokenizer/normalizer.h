// Normalizers: rewrite a text before it is cut into pieces. The components of tokenizer.json's "normalizer".
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace megalith {

// What is being normalised.
struct NormalText {
  std::string text;  // valid UTF-8
  // Whether the text still begins with the first character that the user gave: Metaspace's "first" needs it. It is
  // false once a normalizer has removed that character.
  bool starts_input = false;
  bool is_first = true;  // a part of a stretch: whether it is the first
};

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  virtual void apply(NormalText& text) const = 0;
  // Whether parts of a text that begin with printable ASCII or an ideograph become what the whole would.
  virtual bool is_local() const { return false; }
};

// Reads the component; nullptr when it changes nothing. UserError for one that is not known, naming it and `where`.
std::unique_ptr<Normalizer> make_normalizer(const nlohmann::json& json, std::string_view where);

// The steps that work character by character, or nullptr when `type` is not one of them: Lowercase, StripAccents, Nmt,
// BertNormalizer, ByteLevel.
std::unique_ptr<Normalizer> make_character_normalizer(std::string_view type, const nlohmann::json& json,
                                                      std::string_view where);

enum class UnicodeForm { kNfc, kNfd, kNfkc, kNfkd };
void to_unicode_form(UnicodeForm form, std::string& text);

// Oniguruma's or a plain pattern as {"Regex": …} or {"String": …} writes it: a regular expression for both.
std::string read_pattern(const nlohmann::json& json, std::string_view where);

}  // namespace megalith
