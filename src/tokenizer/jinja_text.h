// What Python does to texts, for methods and filters.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tokenizer/jinja_value.h"

namespace megalith {

// Without these characters, or blanks (null), at the sides. Invalid UTF-8 is not expected.
std::string_view stripped_text(std::string_view text, const std::string* characters, bool left, bool right,
                               JinjaBudget& budget);
// The same of a value that is a text; it itself where nothing goes.
JinjaValue stripped_value(const JinjaValue& text, const std::string* characters, bool left, bool right,
                          JinjaBudget& budget);
// The first `most` places; all when it is negative.
JinjaValue replaced_text(std::string_view text, std::string_view old, std::string_view with, int64_t most,
                         JinjaBudget& budget);

enum class TextCase { kUpper, kLower, kTitle, kFirstUpper };
// One character becomes one: ß stays in upper case.
JinjaValue cased_text(std::string_view text, TextCase wanted, JinjaBudget& budget);

// A method of Python's str, bound to the text; undefined where none of this name is known.
JinjaValue jinja_text_method(const JinjaValue& value, std::string_view name, JinjaBudget& budget);

}  // namespace megalith
