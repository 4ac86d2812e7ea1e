// Jinja's filters; see jinja_builtins.h. Source: jinja2/filters.py.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>

#include "tokenizer/jinja_builtins.h"
#include "tokenizer/jinja_text.h"

namespace megalith {
namespace {

using Arguments = JinjaArguments;
using Filter = JinjaValue (*)(const JinjaValue& value, const Arguments& arguments);

// member.member of an item, as map(attribute=…) and selectattr name it.
JinjaValue member_at(const JinjaValue& item, const std::string& path) {
  JinjaValue value = item;
  size_t begin = 0;
  while (begin <= path.size()) {
    const size_t end = std::min(path.find('.', begin), path.size());
    const std::string name = path.substr(begin, end - begin);
    const bool is_index =
        !name.empty() && name.size() < 10 && name.find_first_not_of("0123456789") == std::string::npos;
    value = jinja_item(value, is_index ? JinjaValue(int64_t{std::atoi(name.c_str())}) : JinjaValue(name));
    begin = end + 1;
  }
  return value;
}

// select, reject, selectattr and rejectattr.
template <bool by_member, bool keeps>
JinjaValue selected(const JinjaValue& value, const Arguments& arguments) {
  const size_t first = by_member ? 1 : 0;  // where the test's name stands
  const std::string path = by_member ? arguments.get(0, "attribute").to_text() : "";
  JinjaItems kept;
  for (const JinjaValue& item : value.to_items()) {
    const JinjaValue looked_at = by_member ? member_at(item, path) : item;
    bool holds = looked_at.is_true();
    if (arguments.by_place.size() > first) {
      const JinjaItems rest(arguments.by_place.begin() + static_cast<std::ptrdiff_t>(first) + 1,
                            arguments.by_place.end());
      holds = apply_jinja_test(arguments.by_place[first].to_text(), looked_at, {rest, arguments.by_name});
    }
    if (holds == keeps) kept.push_back(item);
  }
  return kept;
}

JinjaValue mapped(const JinjaValue& value, const Arguments& arguments) {
  JinjaItems out;
  if (arguments.by_place.empty()) {
    const std::string path = arguments.get(0, "attribute").to_text();
    const JinjaValue* otherwise = arguments.find(1, "default");
    for (const JinjaValue& item : value.to_items()) {
      const JinjaValue found = member_at(item, path);
      out.push_back(found.is_undefined() && otherwise != nullptr ? *otherwise : found);
    }
    return out;
  }
  const JinjaItems rest(arguments.by_place.begin() + 1, arguments.by_place.end());
  for (const JinjaValue& item : value.to_items()) {
    out.push_back(apply_jinja_filter(arguments.by_place[0].to_text(), item, {rest, arguments.by_name}));
  }
  return out;
}

JinjaValue joined(const JinjaValue& value, const Arguments& arguments) {
  const JinjaValue* separator = arguments.find(0, "d");
  const JinjaValue* path = arguments.find(1, "attribute");
  const std::string between = separator == nullptr ? "" : separator->to_text();
  std::string out;
  bool is_first = true;
  for (const JinjaValue& item : value.to_items()) {
    if (!is_first) out += between;
    is_first = false;
    out += (path == nullptr || path->is_none() ? item : member_at(item, path->to_text())).to_text();
    if (out.size() > kMostJinjaBytes) throw JinjaFault{"a text longer than is allowed"};
  }
  return out;
}

JinjaValue with_default(const JinjaValue& value, const Arguments& arguments) {
  const JinjaValue* otherwise = arguments.find(0, "default_value");
  const JinjaValue* also_false = arguments.find(1, "boolean");
  const bool takes = value.is_undefined() || (also_false != nullptr && also_false->is_true() && !value.is_true());
  if (!takes) return value;
  return otherwise == nullptr ? JinjaValue("") : *otherwise;
}

JinjaValue first_of(const JinjaValue& value, const Arguments& /*arguments*/) {
  const JinjaItems items = value.to_items();
  return items.empty() ? JinjaValue::undefined("the first of nothing") : items.front();
}

JinjaValue last_of(const JinjaValue& value, const Arguments& /*arguments*/) {
  const JinjaItems items = value.to_items();
  return items.empty() ? JinjaValue::undefined("the last of nothing") : items.back();
}

JinjaValue to_json(const JinjaValue& value, const Arguments& arguments) {
  const JinjaValue* ascii = arguments.find(0, "ensure_ascii");
  const JinjaValue* indent = arguments.find(1, "indent");
  if (ascii != nullptr && ascii->is_true()) throw JinjaFault{"tojson with ensure_ascii is not known here"};
  for (const char* unread : {"separators", "sort_keys"}) {
    if (arguments.find(99, unread) != nullptr)
      throw JinjaFault{fmt::format("tojson with {} is not known here", unread)};
  }
  return jinja_to_json(value, indent == nullptr || indent->is_none() ? -1 : indent->to_int());
}

JinjaValue trimmed(const JinjaValue& value, const Arguments& arguments) {
  const JinjaValue* characters = arguments.find(0, "chars");
  const bool all_blanks = characters == nullptr || characters->is_none();
  return stripped_text(value.to_text(), all_blanks ? std::nullopt : std::optional(characters->to_text()), true, true);
}

JinjaValue indented(const JinjaValue& value, const Arguments& arguments) {
  const JinjaValue* width = arguments.find(0, "width");
  const JinjaValue *first = arguments.find(1, "first"), *blank = arguments.find(2, "blank");
  const bool takes_first = first != nullptr && first->is_true(), takes_blank = blank != nullptr && blank->is_true();
  std::string by = "    ";
  if (width != nullptr) {
    by = width->text() != nullptr
             ? *width->text()
             : std::string(static_cast<size_t>(std::clamp<int64_t>(width->to_int(), 0, 1000)), ' ');
  }
  const std::string text = value.to_text();
  std::string out;
  for (size_t begin = 0, number = 0; begin <= text.size(); ++number) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    if (number > 0) out += '\n';
    if (number == 0 ? takes_first : takes_blank || !line.empty()) out += by;
    out += line;
    if (out.size() > kMostJinjaBytes) throw JinjaFault{"a text longer than is allowed"};
    begin = end + 1;
  }
  return out;
}

JinjaValue to_int_or(const JinjaValue& value, const Arguments& arguments) {
  const JinjaValue* otherwise = arguments.find(0, "default");
  const JinjaValue fallback = otherwise == nullptr ? JinjaValue(int64_t{0}) : *otherwise;
  if (value.is_int() || value.is_bool()) return value.to_int();
  double number = NAN;
  if (value.is_float()) number = value.to_double();
  if (const std::string* text = value.text()) {
    const std::string digits = stripped_text(*text, std::nullopt, true, true);
    char* end = nullptr;
    number = std::strtod(digits.c_str(), &end);
    if (digits.empty() || *end != '\0') return fallback;
  }
  if (!(std::fabs(number) < 9e18)) return fallback;
  return static_cast<int64_t>(number);
}

JinjaValue to_float_or(const JinjaValue& value, const Arguments& arguments) {
  const JinjaValue* otherwise = arguments.find(0, "default");
  const JinjaValue fallback = otherwise == nullptr ? JinjaValue(0.0) : *otherwise;
  if (value.is_number()) return value.to_double();
  const std::string* text = value.text();
  if (text == nullptr) return fallback;
  const std::string digits = stripped_text(*text, std::nullopt, true, true);
  char* end = nullptr;
  const double number = std::strtod(digits.c_str(), &end);
  return digits.empty() || *end != '\0' ? fallback : JinjaValue(number);
}

JinjaValue items_of(const JinjaValue& value, const Arguments& arguments) {
  if (value.is_undefined()) return JinjaItems{};
  if (value.members() == nullptr) throw JinjaFault{fmt::format("items of {}", value.kind())};
  return jinja_method(value, "items").function()->call(arguments);
}

JinjaValue sorted_members(const JinjaValue& value, const Arguments& /*arguments*/) {
  if (value.members() == nullptr) throw JinjaFault{fmt::format("dictsort of {}", value.kind())};
  JinjaMembers members = *value.members();
  const auto key = [](const auto& member) { return cased_text(member.first, TextCase::kLower); };
  std::stable_sort(members.begin(), members.end(), [&](const auto& a, const auto& b) { return key(a) < key(b); });
  JinjaItems out;
  for (const auto& [name, member] : members) out.push_back(JinjaItems{name, member});
  return out;
}

JinjaValue reversed(const JinjaValue& value, const Arguments& /*arguments*/) {
  if (value.text() != nullptr) return jinja_slice(value, nullptr, nullptr, int64_t{-1});
  JinjaItems items = value.to_items();
  std::reverse(items.begin(), items.end());
  return items;
}

JinjaValue replaced(const JinjaValue& value, const Arguments& arguments) {
  const JinjaValue* count = arguments.find(2, "count");
  return replaced_text(value.to_text(), arguments.get(0, "old").to_text(), arguments.get(1, "new").to_text(),
                       count == nullptr || count->is_none() ? -1 : count->to_int());
}

JinjaValue without_repeats(const JinjaValue& value, const Arguments& /*arguments*/) {
  JinjaItems out;
  const auto key = [](const JinjaValue& item) {
    return item.text() == nullptr ? item : JinjaValue(cased_text(*item.text(), TextCase::kLower));
  };
  for (const JinjaValue& item : value.to_items()) {
    if (out.size() > 1000) throw JinjaFault{"unique of more than 1000 values"};
    const bool is_known = std::any_of(out.begin(), out.end(),
                                      [&](const JinjaValue& other) { return jinja_equal(key(item), key(other)); });
    if (!is_known) out.push_back(item);
  }
  return out;
}

template <TextCase wanted>
JinjaValue in_case(const JinjaValue& value, const Arguments& /*arguments*/) {
  return cased_text(value.to_text(), wanted);
}

const std::map<std::string_view, Filter> kFilters = {
    {"abs",
     [](const JinjaValue& v, const Arguments&) -> JinjaValue {
       return v.to_double() < 0 ? jinja_arithmetic("-", int64_t{0}, v) : v;
     }},
    {"capitalize", in_case<TextCase::kFirstUpper>},
    {"count", [](const JinjaValue& v, const Arguments&) -> JinjaValue { return v.length(); }},
    {"d", with_default},
    {"default", with_default},
    {"dictsort", sorted_members},
    {"first", first_of},
    {"float", to_float_or},
    {"indent", indented},
    {"int", to_int_or},
    {"items", items_of},
    {"join", joined},
    {"last", last_of},
    {"length", [](const JinjaValue& v, const Arguments&) -> JinjaValue { return v.length(); }},
    {"list", [](const JinjaValue& v, const Arguments&) -> JinjaValue { return v.to_items(); }},
    {"lower", in_case<TextCase::kLower>},
    {"map", mapped},
    {"reject", selected<false, false>},
    {"rejectattr", selected<true, false>},
    {"replace", replaced},
    {"reverse", reversed},
    {"safe", [](const JinjaValue& v, const Arguments&) -> JinjaValue { return v.to_text(); }},
    {"select", selected<false, true>},
    {"selectattr", selected<true, true>},
    {"string", [](const JinjaValue& v, const Arguments&) -> JinjaValue { return v.to_text(); }},
    {"title", in_case<TextCase::kTitle>},
    {"tojson", to_json},
    {"trim", trimmed},
    {"unique", without_repeats},
    {"upper", in_case<TextCase::kUpper>},
};

}  // namespace

JinjaValue apply_jinja_filter(std::string_view name, const JinjaValue& value, const JinjaArguments& arguments) {
  const auto found = kFilters.find(name);
  if (found == kFilters.end()) throw JinjaFault{fmt::format("the filter '{}' is not known here", name)};
  return found->second(value, arguments);
}

}  // namespace megalith
