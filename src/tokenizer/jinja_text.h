// Python's text operations, for methods and filters.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tokenizer/jinja_value.h"

namespace megalith {

// Strips these characters, or blanks (null), at the sides. The text must be valid UTF-8.
std::string_view stripped_text(std::string_view text, const std::string* characters, bool left, bool right,
                               JinjaBudget& budget);
// The same for a value that is a text; returns it itself if nothing is stripped.
JinjaValue stripped_value(const JinjaValue& text, const std::string* characters, bool left, bool right,
                          JinjaBudget& budget);
// Replaces the first `most` occurrences; all if negative.
JinjaValue replaced_text(std::string_view text, std::string_view old, std::string_view with, int64_t most,
                         JinjaBudget& budget);

enum class TextCase { kUpper, kLower, kTitle, kFirstUpper };
// Each character maps to one: ß stays in upper case.
JinjaValue cased_text(std::string_view text, TextCase wanted, JinjaBudget& budget);

// A method of Python's str, bound to the text; undefined for an unknown name.
JinjaValue jinja_text_method(const JinjaValue& value, std::string_view name, JinjaBudget& budget);

}  // namespace megalith
