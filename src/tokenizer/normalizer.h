// Normalizers: rewrite a text before it is cut into pieces. The components of tokenizer.json's "normalizer".
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace megalith {

// A text being normalised.
struct NormalText {
  std::string text;  // valid UTF-8
  // True while the text still begins with the user's first character, for Metaspace's "first"; false once a normalizer
  // has removed that character.
  bool starts_input = false;
  bool is_first = true;  // this is the first part of a stretch
};

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  virtual void apply(NormalText& text) const = 0;
  // True if parts that begin with printable ASCII or an ideograph can be normalised separately.
  virtual bool is_local() const { return false; }
};

// Reads the component; nullptr if it changes nothing. UserError for an unknown one, naming it and `where`.
std::unique_ptr<Normalizer> make_normalizer(const nlohmann::json& json, std::string_view where);

// The character-by-character steps, or nullptr if `type` is not one of them: Lowercase, StripAccents, Nmt,
// BertNormalizer, ByteLevel.
std::unique_ptr<Normalizer> make_character_normalizer(std::string_view type, const nlohmann::json& json,
                                                      std::string_view where);

enum class UnicodeForm { kNfc, kNfd, kNfkc, kNfkd };
void to_unicode_form(UnicodeForm form, std::string& text);

// Reads {"Regex": …} (Oniguruma's) or {"String": …} (plain); returns a regular expression for both.
std::string read_pattern(const nlohmann::json& json, std::string_view where);

}  // namespace megalith
