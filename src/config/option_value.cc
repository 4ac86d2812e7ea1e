// Reading and writing option values; see option_value.h.
#include "config/option_value.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "core/strings.h"

namespace megalith {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_separator(char c) { return c == ' ' || c == '\t' || c == ',' || c == '\n' || c == '\r'; }

std::string_view without_plus(std::string_view text) {
  if (text.size() > 1 && text[0] == '+' && (is_digit(text[1]) || text[1] == '.')) text.remove_prefix(1);
  return text;
}

}  // namespace

std::string WrittenValue::text() const {
  if (form == Form::kNull) return "null";
  if (form == Form::kList) return "[" + join(items, ", ") + "]";
  return items.empty() ? "" : items[0];
}

std::optional<bool> parse_bool(std::string_view text) {
  const std::string word = lower_case(trim(text));
  if (word == "true" || word == "1" || word == "yes" || word == "on") return true;
  if (word == "false" || word == "0" || word == "no" || word == "off") return false;
  return std::nullopt;
}

std::optional<int64_t> parse_integer(std::string_view text) {
  text = without_plus(trim(text));
  int64_t plain = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), plain);
  if (error == std::errc() && end == text.data() + text.size()) return plain;

  // sign digits [. digits] [e exponent], kept as decimal digits so no double rounds it.
  const bool negative = !text.empty() && text[0] == '-';
  if (negative) text.remove_prefix(1);
  std::string digits;
  int64_t scale = 0;  // value = digits · 10^scale
  size_t i = 0;
  while (i < text.size() && is_digit(text[i])) digits += text[i++];
  if (i < text.size() && text[i] == '.') {
    for (++i; i < text.size() && is_digit(text[i]); ++i, --scale) digits += text[i];
  }
  if (digits.empty()) return std::nullopt;
  if (i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
    const std::string_view exponent_text = without_plus(text.substr(i + 1));
    int32_t exponent = 0;
    const auto [stop, failure] =
        std::from_chars(exponent_text.data(), exponent_text.data() + exponent_text.size(), exponent);
    if (failure != std::errc() || stop != exponent_text.data() + exponent_text.size()) return std::nullopt;
    scale += exponent;
    i = text.size();
  }
  if (i != text.size()) return std::nullopt;

  const size_t first = digits.find_first_not_of('0');
  if (first == std::string::npos) return 0;
  digits.erase(0, first);
  for (; scale < 0 && digits.back() == '0'; ++scale) digits.pop_back();
  constexpr size_t kMostDigits = 19;  // of an int64
  if (scale < 0 || scale > static_cast<int64_t>(kMostDigits)) return std::nullopt;
  digits.append(static_cast<size_t>(scale), '0');
  if (digits.size() > kMostDigits) return std::nullopt;
  if (negative) digits.insert(0, "-");
  int64_t value = 0;
  const auto [last, overflow] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (overflow != std::errc() || last != digits.data() + digits.size()) return std::nullopt;
  return value;
}

std::optional<double> parse_number(std::string_view text) {
  text = without_plus(trim(text));
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

bool is_null_word(std::string_view text) {
  const std::string word = lower_case(trim(text));
  return word.empty() || word == "null" || word == "none";
}

std::optional<std::vector<std::string>> parse_list(std::string_view text) {
  text = trim(text);
  if (!text.empty() && text.front() == '[') {
    if (text.size() < 2 || text.back() != ']') return std::nullopt;
    text = text.substr(1, text.size() - 2);
  }
  std::vector<std::string> items;
  for (size_t i = 0; i < text.size();) {
    if (is_separator(text[i])) {
      ++i;
    } else if (text[i] == '"' || text[i] == '\'') {
      const size_t close = text.find(text[i], i + 1);
      if (close == std::string_view::npos) return std::nullopt;
      items.emplace_back(text.substr(i + 1, close - i - 1));
      i = close + 1;
    } else {
      const size_t start = i;
      while (i < text.size() && !is_separator(text[i])) ++i;
      items.emplace_back(text.substr(start, i - start));
    }
  }
  return items;
}

std::string yaml_scalar(std::string_view text) {
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  bool plain = !is_null_word(text) && !parse_bool(text) && !parse_number(text) &&
               (is_letter(text[0]) || is_digit(text[0]) || text[0] == '/' || text[0] == '.' || text[0] == '_');
  for (const char c : text) {
    plain = plain && (is_letter(c) || is_digit(c) || std::string_view("_./+-@=").find(c) != std::string_view::npos);
  }
  if (plain) return std::string(text);

  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      quoted += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

std::string number_text(double value) { return fmt::format("{}", value); }

}  // namespace megalith
