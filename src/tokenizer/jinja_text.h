// What Python does to texts, for methods and filters.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "tokenizer/jinja_value.h"

namespace megalith {

// Without these characters, or blanks, at the sides. Invalid UTF-8 is not expected.
std::string stripped_text(std::string_view text, const std::optional<std::string>& characters, bool left, bool right);
// The first `most` places; all when it is negative.
std::string replaced_text(const std::string& text, const std::string& old, const std::string& with, int64_t most);

enum class TextCase { kUpper, kLower, kTitle, kFirstUpper };
// One character becomes one: ß stays in upper case.
std::string cased_text(std::string_view text, TextCase wanted);

// A method of Python's str, bound to the text; undefined where none of this name is known.
JinjaValue jinja_text_method(const JinjaValue& value, std::string_view name);

}  // namespace megalith
