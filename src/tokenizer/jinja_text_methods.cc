// The methods of Python's str that templates call; see jinja_builtins.h.
#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <map>
#include <optional>

#include "tokenizer/jinja_builtins.h"
#include "tokenizer/jinja_text.h"
#include "tokenizer/utf8.h"

namespace megalith {
namespace {

using Arguments = JinjaArguments;
using Method = JinjaValue (*)(const std::string& text, const Arguments& arguments);

// str.isspace() knows four separators more than Unicode's White_Space.
bool is_python_space(uint32_t code_point) { return is_space(code_point) || (code_point >= 0x1C && code_point <= 0x1F); }

const std::string& text_argument(const Arguments& arguments, size_t place, std::string_view name) {
  const JinjaValue& value = arguments.get(place, name);
  if (value.text() == nullptr) throw JinjaFault{fmt::format("{} where a text is needed", value.kind())};
  return *value.text();
}

std::optional<std::string> text_or_none(const Arguments& arguments, size_t place, std::string_view name) {
  const JinjaValue* value = arguments.find(place, name);
  if (value == nullptr || value->is_none()) return std::nullopt;
  return text_argument(arguments, place, name);
}

template <bool left, bool right>
JinjaValue text_strip(const std::string& text, const Arguments& arguments) {
  return stripped_text(text, text_or_none(arguments, 0, "chars"), left, right);
}

template <bool begins>
JinjaValue has_edge(const std::string& text, const Arguments& arguments) {
  const JinjaValue& given = arguments.get(0, "prefix");
  const auto fits = [&](const JinjaValue& edge) {
    if (edge.text() == nullptr) throw JinjaFault{fmt::format("{} where a text is needed", edge.kind())};
    return begins ? text.starts_with(*edge.text()) : text.ends_with(*edge.text());
  };
  if (given.items() == nullptr) return fits(given);
  return std::any_of(given.items()->begin(), given.items()->end(), fits);
}

JinjaItems split_at_blanks(std::string_view text, int64_t most) {
  JinjaItems parts;
  for (;;) {
    const std::string rest = stripped_text(text, std::nullopt, true, false);
    text = text.substr(text.size() - rest.size());
    if (text.empty()) return parts;
    if (most == 0) {
      parts.emplace_back(stripped_text(text, std::nullopt, false, true));
      return parts;
    }
    size_t end = 0;
    while (end < text.size()) {
      const Utf8Step step = decode_utf8(text.substr(end));
      if (is_python_space(step.code_point)) break;
      end += static_cast<size_t>(step.length);
    }
    parts.emplace_back(text.substr(0, end));
    text.remove_prefix(end);
    most -= 1;
  }
}

JinjaValue text_split(const std::string& text, const Arguments& arguments) {
  const std::optional<std::string> separator = text_or_none(arguments, 0, "sep");
  const JinjaValue* given = arguments.find(1, "maxsplit");
  int64_t most = given == nullptr ? -1 : given->to_int();
  if (!separator) return split_at_blanks(text, most);
  if (separator->empty()) throw JinjaFault{"split with an empty separator"};
  JinjaItems parts;
  size_t begin = 0;
  for (size_t end = 0; most != 0 && (end = text.find(*separator, begin)) != std::string::npos; --most) {
    parts.emplace_back(text.substr(begin, end - begin));
    begin = end + separator->size();
  }
  parts.emplace_back(text.substr(begin));
  return parts;
}

JinjaValue split_from_right(const std::string& text, const Arguments& arguments) {
  const std::string& separator = text_argument(arguments, 0, "sep");
  const JinjaValue* given = arguments.find(1, "maxsplit");
  int64_t most = given == nullptr ? -1 : given->to_int();
  if (separator.empty()) throw JinjaFault{"rsplit with an empty separator"};
  JinjaItems parts;
  std::string rest = text;
  for (size_t place = 0; most != 0 && (place = rest.rfind(separator)) != std::string::npos; --most) {
    parts.emplace_back(rest.substr(place + separator.size()));
    rest.resize(place);
  }
  parts.emplace_back(rest);
  std::reverse(parts.begin(), parts.end());
  return parts;
}

JinjaValue split_lines(const std::string& text, const Arguments& /*arguments*/) {
  JinjaItems lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find_first_of("\r\n", begin), text.size());
    lines.emplace_back(text.substr(begin, end - begin));
    begin = end + (text.compare(end, 2, "\r\n") == 0 ? 2 : 1);
  }
  return lines;
}

JinjaValue text_replace(const std::string& text, const Arguments& arguments) {
  const JinjaValue* count = arguments.find(2, "count");
  return replaced_text(text, text_argument(arguments, 0, "old"), text_argument(arguments, 1, "new"),
                       count == nullptr || count->is_none() ? -1 : count->to_int());
}

template <bool from_right>
JinjaValue text_find(const std::string& text, const Arguments& arguments) {
  const std::string& what = text_argument(arguments, 0, "sub");
  const size_t place = from_right ? text.rfind(what) : text.find(what);
  if (place == std::string::npos) return int64_t{-1};
  return JinjaValue(text.substr(0, place)).length();  // in characters
}

JinjaValue text_count(const std::string& text, const Arguments& arguments) {
  const std::string& what = text_argument(arguments, 0, "sub");
  if (what.empty()) return JinjaValue(text).length() + 1;
  int64_t found = 0;
  for (size_t i = text.find(what); i != std::string::npos; i = text.find(what, i + what.size())) ++found;
  return found;
}

JinjaValue text_join(const std::string& text, const Arguments& arguments) {
  std::string out;
  bool is_first = true;
  for (const JinjaValue& item : arguments.get(0, "iterable").to_items()) {
    if (item.text() == nullptr) throw JinjaFault{fmt::format("join of {}", item.kind())};
    if (!is_first) out += text;
    is_first = false;
    out += *item.text();
    if (out.size() > kMostJinjaBytes) throw JinjaFault{"a text longer than is allowed"};
  }
  return out;
}

template <bool prefix>
JinjaValue remove_edge(const std::string& text, const Arguments& arguments) {
  const std::string& edge = text_argument(arguments, 0, "prefix");
  if (prefix ? !text.starts_with(edge) : !text.ends_with(edge)) return text;
  return prefix ? text.substr(edge.size()) : text.substr(0, text.size() - edge.size());
}

template <bool (*all)(char)>
JinjaValue consists_of(const std::string& text, const Arguments& /*arguments*/) {
  return !text.empty() && std::all_of(text.begin(), text.end(), all);
}
bool is_digit_character(char c) { return c >= '0' && c <= '9'; }

JinjaValue is_blank(const std::string& text, const Arguments& /*arguments*/) {
  return !text.empty() && stripped_text(text, std::nullopt, true, true).empty();
}

template <TextCase wanted>
JinjaValue change_case(const std::string& text, const Arguments& /*arguments*/) {
  return cased_text(text, wanted);
}

const std::map<std::string_view, Method> kTextMethods = {
    {"strip", text_strip<true, true>},
    {"lstrip", text_strip<true, false>},
    {"rstrip", text_strip<false, true>},
    {"startswith", has_edge<true>},
    {"endswith", has_edge<false>},
    {"split", text_split},
    {"rsplit", split_from_right},
    {"splitlines", split_lines},
    {"replace", text_replace},
    {"find", text_find<false>},
    {"rfind", text_find<true>},
    {"count", text_count},
    {"join", text_join},
    {"removeprefix", remove_edge<true>},
    {"removesuffix", remove_edge<false>},
    {"isdigit", consists_of<is_digit_character>},
    {"isspace", is_blank},
    {"upper", change_case<TextCase::kUpper>},
    {"lower", change_case<TextCase::kLower>},
    {"title", change_case<TextCase::kTitle>},
    {"capitalize", change_case<TextCase::kFirstUpper>},
};

}  // namespace

std::string stripped_text(std::string_view text, const std::optional<std::string>& characters, bool left, bool right) {
  const auto goes = [&](std::string_view character) {
    if (!characters) return is_python_space(decode_utf8(character).code_point);
    return characters->find(character) != std::string::npos;
  };
  while (left && !text.empty()) {
    const auto length = static_cast<size_t>(decode_utf8(text).length);
    if (!goes(text.substr(0, length))) break;
    text.remove_prefix(length);
  }
  while (right && !text.empty()) {
    size_t begin = text.size() - 1;
    while (begin > 0 && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) --begin;
    if (!goes(text.substr(begin))) break;
    text = text.substr(0, begin);
  }
  return std::string(text);
}

std::string replaced_text(const std::string& text, const std::string& old, const std::string& with, int64_t most) {
  std::string out;
  const auto add = [&](std::string_view part) {
    if (out.size() + part.size() > kMostJinjaBytes) throw JinjaFault{"a text longer than is allowed"};
    out += part;
  };
  if (old.empty()) {  // before every character and at the end
    size_t i = 0;
    for (; i < text.size() && most != 0; --most) {
      add(with);
      const auto length = static_cast<size_t>(decode_utf8(std::string_view(text).substr(i)).length);
      add(std::string_view(text).substr(i, length));
      i += length;
    }
    add(std::string_view(text).substr(i));
    if (most != 0) add(with);
    return out;
  }
  size_t begin = 0;
  for (size_t end = 0; most != 0 && (end = text.find(old, begin)) != std::string::npos; --most) {
    add(std::string_view(text).substr(begin, end - begin));
    add(with);
    begin = end + old.size();
  }
  add(std::string_view(text).substr(begin));
  return out;
}

std::string cased_text(std::string_view text, TextCase wanted) {
  std::string out;
  bool begins = true;
  while (!text.empty()) {
    const Utf8Step step = decode_utf8(text);
    const auto c = static_cast<utf8proc_int32_t>(step.code_point);
    const bool is_upper = wanted == TextCase::kUpper || (begins && wanted != TextCase::kLower);
    const bool is_title = is_upper && wanted != TextCase::kUpper;
    append_utf8(static_cast<uint32_t>(is_title   ? utf8proc_totitle(c)
                                      : is_upper ? utf8proc_toupper(c)
                                                 : utf8proc_tolower(c)),
                out);
    const bool is_letter = utf8proc_toupper(c) != c || utf8proc_tolower(c) != c;
    begins = wanted == TextCase::kTitle && !is_letter;
    text.remove_prefix(static_cast<size_t>(step.length));
  }
  return out;
}

JinjaValue jinja_text_method(const JinjaValue& value, std::string_view name) {
  const auto found = kTextMethods.find(name);
  if (found == kTextMethods.end()) return {};
  return JinjaFunction{std::string(name), [value, method = found->second](const Arguments& arguments) {
                         return method(*value.text(), arguments);
                       }};
}

}  // namespace megalith
