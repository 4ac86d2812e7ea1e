// How option values are read from text and written as YAML: one reading of booleans, numbers and lists for files,
// environment and command line alike.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megalith {

// A value as somebody wrote it, before it is known what type it should have.
struct WrittenValue {
  enum class Form {
    kText,    // one text, to be interpreted: "null" unsets, "a, b" may be a list
    kQuoted,  // one text that YAML quoted: "null" is a word like any other
    kList,    // items, each taken as it stands
    kNull,    // YAML's null
  };
  Form form = Form::kText;
  std::vector<std::string> items;  // one for kText and kQuoted, none for kNull

  static WrittenValue of(std::string text) { return {Form::kText, {std::move(text)}}; }
  static WrittenValue null() { return {Form::kNull, {}}; }
  std::string text() const;  // for messages: "null", the text, or "[a, b]"
};

// true false 1 0 yes no on off, in any case; nothing when it is none of them.
std::optional<bool> parse_bool(std::string_view text);

// A decimal integer, also with fraction or exponent when the value is exactly an integer of 64 bits: 8, -1, 1e6, 2.0.
std::optional<int64_t> parse_integer(std::string_view text);

// A finite number: 1e-5, .5, 3.
std::optional<double> parse_number(std::string_view text);

// "null", "none" (any case) and "".
bool is_null_word(std::string_view text);

// Items separated by blanks or commas, optionally within brackets; an item in quotes may hold both.
// Nothing when a bracket or quote is not closed.
std::optional<std::vector<std::string>> parse_list(std::string_view text);

// Text as a YAML scalar, quoted where YAML or we would read it as something else.
std::string yaml_scalar(std::string_view text);

// The shortest text that reads back as the same double: 0.0001, 1e-05, 3.
std::string number_text(double value);

}  // namespace megalith
