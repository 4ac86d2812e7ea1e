// The special tokens: end of document, beginning of text, padding, mask.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace megalith {

struct SpecialIds {
  std::optional<int32_t> eod, bos, pad;   // end of document, beginning of text, padding
  std::optional<int32_t> cls, sep, mask;  // BERT's
  std::vector<int32_t> extra;             // T5's sentinels <extra_id_0>, <extra_id_1>, …
};

// Reads tokenizer_config.json and special_tokens_map.json of a folder; guesses the rest from the usual names.
// find(text) is the id of a token, or nothing.
SpecialIds find_special_ids(const std::filesystem::path& folder,
                            const std::function<std::optional<int32_t>(const std::string&)>& find);

}  // namespace megalith
