// The splitting patterns of widespread tokenizers, matched without a regular expression engine. Each is compared with
// the engine on the same texts in tests/tokenizer.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>

#include "tokenizer/pre_tokenizer.h"

namespace megalith {

// The last three are DeepSeek V3's splits, which follow one another.
enum class KnownPattern { kGpt2, kLlama3, kQwen2, kO200k, kTekken, kNumbers, kCjk, kDeepSeek };

// The known pattern equal to this regular expression, if written as in the model's own files.
std::optional<KnownPattern> find_known_pattern(std::string_view expression);

// Passes on the matches and, as pieces of their own, the text between them. The text is valid UTF-8.
void split_known(KnownPattern pattern, const TextPiece& piece, PieceSink sink);

// The same pieces many at a time: puts the ends of those from `at` on into `ends`, which has room for kFewestEnds or
// more, moves `at` to the last of them, and returns their number; 0 at the text's end. ASCII is cut by ascii_cuts.h.
using FindEnds = size_t (*)(std::string_view text, size_t& at, std::span<size_t> ends);
inline constexpr size_t kFewestEnds = 65;
// For a pattern, or DeepSeek's three, one after the other; else null.
FindEnds find_ends_of(std::span<const KnownPattern> splits);

}  // namespace megalith
