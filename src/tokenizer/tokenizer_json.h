// Hugging Face's tokenizer.json: added tokens, normalizer, pre_tokenizer, model, post_processor and decoder, with the
// semantics of the `tokenizers` library. Unknown components are refused by name. "truncation" and "padding" are
// settings of the program that wrote the file and are not applied.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "tokenizer/special_ids.h"
#include "tokenizer/tokenizer.h"

namespace megalith {

// path  a tokenizer.json, or a folder that holds one. End-of-document, beginning and padding tokens come from
//       tokenizer_config.json and special_tokens_map.json next to it if present, else from the usual names.
std::unique_ptr<Tokenizer> load_tokenizer_json(const std::filesystem::path& path);

// The same from parsed JSON; `where` names it in errors and is the tokenizer's name.
//   choose  returns the special ids, given a token look-up
using TokenFinder = std::function<std::optional<int32_t>(const std::string&)>;
std::unique_ptr<Tokenizer> make_json_tokenizer(const nlohmann::json& root, const std::string& where,
                                               const std::function<SpecialIds(const TokenFinder&)>& choose);

}  // namespace megalith
