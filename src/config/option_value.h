// Option values read from text and written as YAML: one reading of booleans, numbers and lists for files, environment
// and command line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megalith {

// A value as written, of yet unknown type.
struct WrittenValue {
  enum class Form {
    kText,    // to interpret: "null" unsets, "a, b" may be a list
    kQuoted,  // quoted in YAML: "null" is a plain word
    kList,    // items, each taken literally
    kNull,    // YAML's null
  };
  Form form = Form::kText;
  std::vector<std::string> items;  // one for kText and kQuoted, none for kNull

  static WrittenValue of(std::string text) { return {Form::kText, {std::move(text)}}; }
  static WrittenValue null() { return {Form::kNull, {}}; }
  std::string text() const;  // for messages: "null", the text, or "[a, b]"
};

// true false 1 0 yes no on off, in any case; else nothing.
std::optional<bool> parse_bool(std::string_view text);

// A decimal integer, also with fraction or exponent if exactly a 64-bit integer: 8, -1, 1e6, 2.0.
std::optional<int64_t> parse_integer(std::string_view text);

// A finite number: 1e-5, .5, 3.
std::optional<double> parse_number(std::string_view text);

// "null", "none" (any case) and "".
bool is_null_word(std::string_view text);

// Items separated by blanks or commas, optionally in brackets; quoted items may contain both. Nothing if a bracket or
// quote is not closed.
std::optional<std::vector<std::string>> parse_list(std::string_view text);

// A YAML scalar, quoted where YAML or we would read it otherwise.
std::string yaml_scalar(std::string_view text);

// The shortest text that reads back as the same double: 0.0001, 1e-05, 3.
std::string number_text(double value);

}  // namespace megalith
