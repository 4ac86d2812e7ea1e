// The methods of Python's str that templates call; see jinja_builtins.h.
#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <map>
#include <utility>

#include "tokenizer/jinja_builtins.h"
#include "tokenizer/jinja_text.h"
#include "tokenizer/utf8.h"

namespace megalith {
namespace {

using Arguments = JinjaArguments;
using Method = JinjaValue (*)(const JinjaValue& value, const Arguments& arguments);

constexpr int64_t kCharacter = 5, kCasedCharacter = 35;  // units

// str.isspace() accepts four separators in addition to Unicode's White_Space.
bool is_python_space(uint32_t code_point) { return is_space(code_point) || (code_point >= 0x1C && code_point <= 0x1F); }

const std::string& text_argument(const Arguments& arguments, size_t place, std::string_view name) {
  const JinjaValue& value = arguments.get(place, name);
  if (value.text() == nullptr) throw JinjaFault{fmt::format("{} where a text is needed", value.kind())};
  return *value.text();
}

// Null for none or a missing argument.
const std::string* text_or_none(const Arguments& arguments, size_t place, std::string_view name) {
  const JinjaValue* value = arguments.find(place, name);
  return value == nullptr || value->is_none() ? nullptr : &text_argument(arguments, place, name);
}

int64_t number_or(const Arguments& arguments, size_t place, std::string_view name, int64_t otherwise) {
  const JinjaValue* value = arguments.find(place, name);
  return value == nullptr || value->is_none() ? otherwise : value->to_int();
}

template <bool left, bool right>
JinjaValue text_strip(const JinjaValue& value, const Arguments& arguments) {
  return stripped_value(value, text_or_none(arguments, 0, "chars"), left, right, arguments.budget);
}

template <bool begins>
JinjaValue has_edge(const JinjaValue& value, const Arguments& arguments) {
  const std::string& text = *value.text();
  const JinjaValue& given = arguments.get(0, "prefix");
  const auto fits = [&](const JinjaValue& edge) {
    if (edge.text() == nullptr) throw JinjaFault{fmt::format("{} where a text is needed", edge.kind())};
    arguments.budget.work(10 + std::min(text.size(), edge.text()->size()) / 4);
    return begins ? text.starts_with(*edge.text()) : text.ends_with(*edge.text());
  };
  if (given.items() == nullptr) return fits(given);
  return std::any_of(given.items()->begin(), given.items()->end(), fits);
}

JinjaValue split_at_blanks(std::string_view text, int64_t most, JinjaBudget& budget) {
  JinjaListMaker parts(&budget);
  for (;; --most) {
    text = stripped_text(text, nullptr, true, false, budget);
    if (text.empty()) return parts.take();
    if (most == 0) {
      parts.add_text(stripped_text(text, nullptr, false, true, budget));
      return parts.take();
    }
    size_t end = 0;
    while (end < text.size()) {
      const Utf8Step step = decode_utf8(text.substr(end));
      if (is_python_space(step.code_point)) break;
      end += static_cast<size_t>(step.length);
    }
    budget.work(end, kCharacter);
    parts.add_text(text.substr(0, end));
    text.remove_prefix(end);
  }
}

JinjaValue text_split(const JinjaValue& value, const Arguments& arguments) {
  const std::string_view text = *value.text();
  const std::string* separator = text_or_none(arguments, 0, "sep");
  int64_t most = number_or(arguments, 1, "maxsplit", -1);
  if (separator == nullptr) return split_at_blanks(text, most, arguments.budget);
  if (separator->empty()) throw JinjaFault{"split with an empty separator"};
  JinjaListMaker parts(&arguments.budget);
  size_t begin = 0;
  for (size_t end = 0; most != 0 && (end = find_in_text(text, *separator, begin, arguments.budget)) != text.npos;
       --most) {
    parts.add_text(text.substr(begin, end - begin));
    begin = end + separator->size();
  }
  parts.add_text(text.substr(begin));
  return parts.take();
}

// Reversed bytes, so that the last occurrence in a text is the first.
class ReversedText {
 public:
  ReversedText(std::string_view text, JinjaBudget& budget)
      : held_(&budget, text.size()), bytes_(text.rbegin(), text.rend()) {}
  operator std::string_view() const { return bytes_; }

 private:
  JinjaHeld held_;
  std::string bytes_;
};

JinjaValue split_from_right(const JinjaValue& value, const Arguments& arguments) {
  const std::string_view text = *value.text(), separator = text_argument(arguments, 0, "sep");
  int64_t most = number_or(arguments, 1, "maxsplit", -1);
  if (separator.empty()) throw JinjaFault{"rsplit with an empty separator"};
  const ReversedText mirrored(text, arguments.budget), what(separator, arguments.budget);
  JinjaListMaker parts(&arguments.budget);
  size_t begin = 0;
  for (size_t end = 0; most != 0 && (end = find_in_text(mirrored, what, begin, arguments.budget)) != text.npos;
       --most) {
    parts.add_text(text.substr(text.size() - end, end - begin));
    begin = end + separator.size();
  }
  parts.add_text(text.substr(0, text.size() - begin));
  return jinja_slice(parts.take(), nullptr, nullptr, int64_t{-1}, arguments.budget);
}

JinjaValue split_lines(const JinjaValue& value, const Arguments& arguments) {
  const std::string_view text = *value.text();
  arguments.budget.work(text.size(), kCharacter);
  JinjaListMaker lines(&arguments.budget);
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find_first_of("\r\n", begin), text.size());
    lines.add_text(text.substr(begin, end - begin));
    begin = end + (text.compare(end, 2, "\r\n") == 0 ? 2 : 1);
  }
  return lines.take();
}

JinjaValue text_replace(const JinjaValue& value, const Arguments& arguments) {
  return replaced_text(*value.text(), text_argument(arguments, 0, "old"), text_argument(arguments, 1, "new"),
                       number_or(arguments, 2, "count", -1), arguments.budget);
}

template <bool from_right>
JinjaValue text_find(const JinjaValue& value, const Arguments& arguments) {
  JinjaBudget& budget = arguments.budget;
  const std::string_view text = *value.text(), what = text_argument(arguments, 0, "sub");
  size_t place = from_right ? find_in_text(ReversedText(text, budget), ReversedText(what, budget), 0, budget)
                            : find_in_text(text, what, 0, budget);
  if (place == text.npos) return int64_t{-1};
  if (from_right) place = text.size() - what.size() - place;
  return JinjaValue(text.substr(0, place), &budget).length(budget);  // in characters
}

JinjaValue text_count(const JinjaValue& value, const Arguments& arguments) {
  const std::string_view text = *value.text(), what = text_argument(arguments, 0, "sub");
  if (what.empty()) return value.length(arguments.budget) + 1;
  int64_t found = 0;
  for (size_t i = 0; (i = find_in_text(text, what, i, arguments.budget)) != text.npos; i += what.size()) ++found;
  return found;
}

JinjaValue text_join(const JinjaValue& value, const Arguments& arguments) {
  const JinjaValue items = arguments.get(0, "iterable").to_items(arguments.budget);
  JinjaWriter out(arguments.budget);
  bool is_first = true;
  for (const JinjaValue& item : *items.items()) {
    if (item.text() == nullptr) throw JinjaFault{fmt::format("join of {}", item.kind())};
    if (!std::exchange(is_first, false)) out.add(*value.text());
    out.add(*item.text());
  }
  return out.take();
}

template <bool prefix>
JinjaValue remove_edge(const JinjaValue& value, const Arguments& arguments) {
  const std::string_view text = *value.text(), edge = text_argument(arguments, 0, "prefix");
  arguments.budget.work(edge.size() / 4);
  if (prefix ? !text.starts_with(edge) : !text.ends_with(edge)) return value;
  return {prefix ? text.substr(edge.size()) : text.substr(0, text.size() - edge.size()), &arguments.budget};
}

JinjaValue is_digits(const JinjaValue& value, const Arguments& arguments) {
  const std::string& text = *value.text();
  arguments.budget.work(text.size());
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

JinjaValue is_blank(const JinjaValue& value, const Arguments& arguments) {
  const std::string& text = *value.text();
  return !text.empty() && stripped_text(text, nullptr, true, false, arguments.budget).empty();
}

template <TextCase wanted>
JinjaValue change_case(const JinjaValue& value, const Arguments& arguments) {
  return cased_text(*value.text(), wanted, arguments.budget);
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
    {"isdigit", is_digits},
    {"isspace", is_blank},
    {"upper", change_case<TextCase::kUpper>},
    {"lower", change_case<TextCase::kLower>},
    {"title", change_case<TextCase::kTitle>},
    {"capitalize", change_case<TextCase::kFirstUpper>},
};

}  // namespace

std::string_view stripped_text(std::string_view text, const std::string* characters, bool left, bool right,
                               JinjaBudget& budget) {
  const auto goes = [&](std::string_view character) {
    budget.work(1, kCharacter);
    if (characters == nullptr) return is_python_space(decode_utf8(character).code_point);
    return find_in_text(*characters, character, 0, budget) != std::string::npos;
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
  return text;
}

JinjaValue stripped_value(const JinjaValue& text, const std::string* characters, bool left, bool right,
                          JinjaBudget& budget) {
  const std::string_view kept = stripped_text(*text.text(), characters, left, right, budget);
  return kept.size() == text.text()->size() ? text : JinjaValue(kept, &budget);
}

JinjaValue replaced_text(std::string_view text, std::string_view old, std::string_view with, int64_t most,
                         JinjaBudget& budget) {
  JinjaWriter out(budget);
  size_t begin = 0;
  if (old.empty()) {  // before every character and at the end
    for (; begin < text.size() && most != 0; --most) {
      const size_t length = utf8_length(text[begin]);
      out.add(with);
      out.add(text.substr(begin, length));
      begin += length;
    }
    out.add(text.substr(std::min(begin, text.size())));
    if (most != 0) out.add(with);
    return out.take();
  }
  for (size_t end = 0; most != 0 && (end = find_in_text(text, old, begin, budget)) != text.npos; --most) {
    out.add(text.substr(begin, end - begin));
    out.add(with);
    begin = end + old.size();
  }
  out.add(text.substr(begin));
  return out.take();
}

JinjaValue cased_text(std::string_view text, TextCase wanted, JinjaBudget& budget) {
  constexpr size_t kAtOnce = 256;  // characters between requests to the budget
  JinjaWriter out(budget);
  std::string part;
  bool begins = true;
  while (!text.empty()) {
    part.clear();
    size_t count = 0;
    for (; count < kAtOnce && !text.empty(); ++count) {
      const Utf8Step step = decode_utf8(text);
      const auto c = static_cast<utf8proc_int32_t>(step.code_point);
      const bool is_upper = wanted == TextCase::kUpper || (begins && wanted != TextCase::kLower);
      const bool is_title = is_upper && wanted != TextCase::kUpper;
      append_utf8(static_cast<uint32_t>(is_title   ? utf8proc_totitle(c)
                                        : is_upper ? utf8proc_toupper(c)
                                                   : utf8proc_tolower(c)),
                  part);
      const bool is_letter = utf8proc_toupper(c) != c || utf8proc_tolower(c) != c;
      begins = wanted == TextCase::kTitle && !is_letter;
      text.remove_prefix(static_cast<size_t>(step.length));
    }
    budget.work(count, kCasedCharacter);
    out.add(part);
  }
  return out.take();
}

JinjaValue jinja_text_method(const JinjaValue& value, std::string_view name, JinjaBudget& budget) {
  const auto found = kTextMethods.find(name);
  if (found == kTextMethods.end()) return {};
  const auto call = [value, method = found->second](const Arguments& arguments) { return method(value, arguments); };
  return {JinjaFunction{std::string(name), call}, &budget};
}

}  // namespace megalith
