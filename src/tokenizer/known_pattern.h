// The splitting patterns of widespread tokenizers, matched without a regular expression engine. Each is compared with
// the engine on the same texts in tests/tokenizer.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace megalith {

enum class KnownPattern { kGpt2, kLlama3, kQwen2 };

// The known pattern equal to this regular expression, if written as in the model's own files.
std::optional<KnownPattern> find_known_pattern(std::string_view expression);

// The end of the match that begins at `begin`; these patterns match everywhere, without gaps. `text` is valid UTF-8.
size_t match_end(KnownPattern pattern, std::string_view text, size_t begin);

}  // namespace megalith
