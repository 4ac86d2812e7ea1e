// Jinja's filters; see jinja_builtins.h. Source: jinja2/filters.py.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <optional>
#include <utility>

#include "tokenizer/jinja_builtins.h"
#include "tokenizer/jinja_text.h"

namespace megalith {
namespace {

using Arguments = JinjaArguments;
using Filter = JinjaValue (*)(const JinjaValue& value, const Arguments& arguments);

// member.member of an item, as in map(attribute=…) and selectattr.
JinjaValue member_at(const JinjaValue& item, const std::string& path, JinjaBudget& budget) {
  constexpr int64_t kStep = 100;  // units
  JinjaValue value = item;
  size_t begin = 0;
  while (begin <= path.size()) {
    const size_t end = std::min(path.find('.', begin), path.size());
    const std::string name = path.substr(begin, end - begin);
    budget.work(1 + name.size() / 100, kStep);
    const bool is_index =
        !name.empty() && name.size() < 10 && name.find_first_not_of("0123456789") == std::string::npos;
    const JinjaValue index = is_index ? JinjaValue(int64_t{std::atoi(name.c_str())}) : JinjaValue(name, &budget);
    value = jinja_item(value, index, budget);
    begin = end + 1;
  }
  return value;
}

// Arguments after the first `count`, for the test or filter that one of the first names.
Arguments arguments_behind(const Arguments& arguments, size_t count) {
  Arguments rest(arguments.budget);
  rest.held.add((arguments.by_place.size() + arguments.by_name.size()) * kJinjaMemberBytes);
  if (count < arguments.by_place.size()) {
    rest.by_place.assign(arguments.by_place.begin() + static_cast<std::ptrdiff_t>(count), arguments.by_place.end());
  }
  rest.by_name = arguments.by_name;
  return rest;
}

JinjaValue text_at(const Arguments& arguments, size_t place, std::string_view name) {
  return arguments.get(place, name).to_text(arguments.budget);
}

// select, reject, selectattr and rejectattr.
template <bool by_member, bool keeps>
JinjaValue selected(const JinjaValue& value, const Arguments& arguments) {
  const size_t first = by_member ? 1 : 0;  // index of the test's name
  const JinjaValue path = by_member ? text_at(arguments, 0, "attribute") : JinjaValue();
  const bool has_test = arguments.by_place.size() > first;
  const JinjaValue test = has_test ? text_at(arguments, first, "") : JinjaValue();
  const Arguments rest = arguments_behind(arguments, first + 1);
  const JinjaValue items = value.to_items(arguments.budget);
  JinjaListMaker kept(&arguments.budget);
  for (const JinjaValue& item : *items.items()) {
    const JinjaValue looked_at = by_member ? member_at(item, *path.text(), arguments.budget) : item;
    arguments.budget.work(1, kJinjaCall);
    const bool holds = has_test ? apply_jinja_test(*test.text(), looked_at, rest) : looked_at.is_true();
    if (holds == keeps) kept.add(item);
  }
  return kept.take();
}

JinjaValue mapped(const JinjaValue& value, const Arguments& arguments) {
  JinjaListMaker out(&arguments.budget);
  const JinjaValue items = value.to_items(arguments.budget);
  if (arguments.by_place.empty()) {
    const JinjaValue path = text_at(arguments, 0, "attribute");
    const JinjaValue* otherwise = arguments.find(1, "default");
    for (const JinjaValue& item : *items.items()) {
      const JinjaValue found = member_at(item, *path.text(), arguments.budget);
      out.add(found.is_undefined() && otherwise != nullptr ? *otherwise : found);
    }
    return out.take();
  }
  const JinjaValue filter = text_at(arguments, 0, "");
  const Arguments rest = arguments_behind(arguments, 1);
  for (const JinjaValue& item : *items.items()) out.add(apply_jinja_filter(*filter.text(), item, rest));
  return out.take();
}

JinjaValue joined(const JinjaValue& value, const Arguments& arguments) {
  const JinjaValue* separator = arguments.find(0, "d");
  const JinjaValue* path = arguments.find(1, "attribute");
  const bool by_member = path != nullptr && !path->is_none();
  const JinjaValue name = by_member ? path->to_text(arguments.budget) : JinjaValue();
  const JinjaValue between = separator == nullptr ? JinjaValue() : separator->to_text(arguments.budget);
  const JinjaValue items = value.to_items(arguments.budget);
  JinjaWriter out(arguments.budget);
  bool is_first = true;
  for (const JinjaValue& item : *items.items()) {
    if (!std::exchange(is_first, false) && separator != nullptr) out.add(*between.text());
    const JinjaValue part = by_member ? member_at(item, *name.text(), arguments.budget) : item;
    out.add(*part.to_text(arguments.budget).text());
  }
  return out.take();
}

JinjaValue with_default(const JinjaValue& value, const Arguments& arguments) {
  const JinjaValue* otherwise = arguments.find(0, "default_value");
  const JinjaValue* also_false = arguments.find(1, "boolean");
  const bool takes = value.is_undefined() || (also_false != nullptr && also_false->is_true() && !value.is_true());
  if (!takes) return value;
  return otherwise == nullptr ? JinjaValue("", &arguments.budget) : *otherwise;
}

JinjaValue first_of(const JinjaValue& value, const Arguments& arguments) {
  const JinjaValue items = value.to_items(arguments.budget);
  return items.items()->empty() ? JinjaValue::undefined("the first of nothing") : items.items()->front();
}

JinjaValue last_of(const JinjaValue& value, const Arguments& arguments) {
  const JinjaValue items = value.to_items(arguments.budget);
  return items.items()->empty() ? JinjaValue::undefined("the last of nothing") : items.items()->back();
}

JinjaValue to_json(const JinjaValue& value, const Arguments& arguments) {
  const JinjaValue* ascii = arguments.find(0, "ensure_ascii");
  const JinjaValue* indent = arguments.find(1, "indent");
  if (ascii != nullptr && ascii->is_true()) throw JinjaFault{"tojson with ensure_ascii is not known here"};
  for (const char* unread : {"separators", "sort_keys"}) {
    if (arguments.find(99, unread) != nullptr)
      throw JinjaFault{fmt::format("tojson with {} is not known here", unread)};
  }
  return jinja_to_json(value, indent == nullptr || indent->is_none() ? -1 : indent->to_int(), arguments.budget);
}

JinjaValue trimmed(const JinjaValue& value, const Arguments& arguments) {
  const JinjaValue* characters = arguments.find(0, "chars");
  const JinjaValue text = value.to_text(arguments.budget);
  const bool all_blanks = characters == nullptr || characters->is_none();
  const JinjaValue given = all_blanks ? JinjaValue() : characters->to_text(arguments.budget);
  return stripped_value(text, given.text(), true, true, arguments.budget);
}

JinjaValue indented(const JinjaValue& value, const Arguments& arguments) {
  const JinjaValue* width = arguments.find(0, "width");
  const JinjaValue *first = arguments.find(1, "first"), *blank = arguments.find(2, "blank");
  const bool takes_first = first != nullptr && first->is_true(), takes_blank = blank != nullptr && blank->is_true();
  const bool is_text = width != nullptr && width->text() != nullptr;
  const int64_t num_blanks = width == nullptr || is_text ? 4 : std::clamp<int64_t>(width->to_int(), 0, 1000);
  const JinjaValue text_value = value.to_text(arguments.budget);
  const std::string_view text = *text_value.text();
  JinjaWriter out(arguments.budget);
  for (size_t begin = 0, number = 0; begin <= text.size(); ++number) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    if (number > 0) out.add("\n");
    if (number == 0 ? takes_first : takes_blank || !line.empty()) {
      is_text ? out.add(*width->text()) : out.repeat(" ", static_cast<size_t>(num_blanks));
    }
    out.add(line);
    arguments.budget.work(1, 20);
    begin = end + 1;
  }
  return out.take();
}

// A number that is the whole text except blanks; nothing otherwise, or with more digits than Python takes.
std::optional<double> number_in(const std::string& text, JinjaBudget& budget) {
  constexpr size_t kMostDigits = 4300;
  const std::string_view digits = stripped_text(text, nullptr, true, true, budget);
  if (digits.empty() || digits.size() > kMostDigits) return std::nullopt;
  budget.work(digits.size(), 20);
  const std::string copy(digits);
  char* end = nullptr;
  const double number = std::strtod(copy.c_str(), &end);
  return *end != '\0' ? std::nullopt : std::optional(number);
}

JinjaValue to_int_or(const JinjaValue& value, const Arguments& arguments) {
  const JinjaValue* otherwise = arguments.find(0, "default");
  const JinjaValue fallback = otherwise == nullptr ? JinjaValue(int64_t{0}) : *otherwise;
  if (value.is_int() || value.is_bool()) return value.to_int();
  double number = NAN;
  if (value.is_float()) number = value.to_double();
  if (value.text() != nullptr) number = number_in(*value.text(), arguments.budget).value_or(NAN);
  if (!(std::fabs(number) < 9e18)) return fallback;
  return static_cast<int64_t>(number);
}

JinjaValue to_float_or(const JinjaValue& value, const Arguments& arguments) {
  const JinjaValue* otherwise = arguments.find(0, "default");
  const JinjaValue fallback = otherwise == nullptr ? JinjaValue(0.0) : *otherwise;
  if (value.is_number()) return value.to_double();
  if (value.text() == nullptr) return fallback;
  const std::optional<double> number = number_in(*value.text(), arguments.budget);
  return number ? JinjaValue(*number) : fallback;
}

JinjaValue items_of(const JinjaValue& value, const Arguments& arguments) {
  if (value.is_undefined()) return JinjaListMaker(&arguments.budget).take();
  if (value.members() == nullptr) throw JinjaFault{fmt::format("items of {}", value.kind())};
  return jinja_pairs(*value.members(), arguments.budget);
}

JinjaValue sorted_members(const JinjaValue& value, const Arguments& arguments) {
  constexpr int64_t kComparison = 50;  // units, for an item compared with each of about 20
  if (value.members() == nullptr) throw JinjaFault{fmt::format("dictsort of {}", value.kind())};
  std::vector<std::pair<JinjaValue, const JinjaMembers::value_type*>> keyed;
  JinjaHeld held(&arguments.budget, value.members()->size() * sizeof(keyed[0]));
  for (const auto& member : *value.members()) {
    keyed.emplace_back(cased_text(member.first, TextCase::kLower, arguments.budget), &member);
    arguments.budget.work(20 + member.first.size() / 4 * 20, kComparison / 20);
  }
  arguments.budget.work(keyed.size() * 20, kComparison);
  std::stable_sort(keyed.begin(), keyed.end(),
                   [](const auto& a, const auto& b) { return *a.first.text() < *b.first.text(); });
  JinjaListMaker out(&arguments.budget);
  for (const auto& [key, member] : keyed) {
    JinjaListMaker pair(&arguments.budget);
    pair.add_text(member->first);
    pair.add(member->second);
    out.add(pair.take());
  }
  return out.take();
}

JinjaValue reversed(const JinjaValue& value, const Arguments& arguments) {
  if (value.text() != nullptr) return jinja_slice(value, nullptr, nullptr, int64_t{-1}, arguments.budget);
  return jinja_slice(value.to_items(arguments.budget), nullptr, nullptr, int64_t{-1}, arguments.budget);
}

JinjaValue replaced(const JinjaValue& value, const Arguments& arguments) {
  const JinjaValue text = value.to_text(arguments.budget), old = text_at(arguments, 0, "old");
  const JinjaValue with = text_at(arguments, 1, "new");
  const JinjaValue* count = arguments.find(2, "count");
  return replaced_text(*text.text(), *old.text(), *with.text(),
                       count == nullptr || count->is_none() ? -1 : count->to_int(), arguments.budget);
}

JinjaValue without_repeats(const JinjaValue& value, const Arguments& arguments) {
  JinjaListMaker out(&arguments.budget), keys(&arguments.budget);
  const JinjaValue items = value.to_items(arguments.budget);
  for (const JinjaValue& item : *items.items()) {
    if (out.items().size() > 1000) throw JinjaFault{"unique of more than 1000 values"};
    const JinjaValue key = item.text() == nullptr ? item : cased_text(*item.text(), TextCase::kLower, arguments.budget);
    const bool is_known = std::any_of(keys.items().begin(), keys.items().end(), [&](const JinjaValue& other) {
      return jinja_equal(key, other, arguments.budget);
    });
    if (is_known) continue;
    out.add(item);
    keys.add(key);
  }
  return out.take();
}

template <TextCase wanted>
JinjaValue in_case(const JinjaValue& value, const Arguments& arguments) {
  return cased_text(*value.to_text(arguments.budget).text(), wanted, arguments.budget);
}

const std::map<std::string_view, Filter> kFilters = {
    {"abs",
     [](const JinjaValue& v, const Arguments& a) -> JinjaValue {
       return v.to_double() < 0 ? jinja_arithmetic("-", int64_t{0}, v, a.budget) : v;
     }},
    {"capitalize", in_case<TextCase::kFirstUpper>},
    {"count", [](const JinjaValue& v, const Arguments& a) -> JinjaValue { return v.length(a.budget); }},
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
    {"length", [](const JinjaValue& v, const Arguments& a) -> JinjaValue { return v.length(a.budget); }},
    {"list", [](const JinjaValue& v, const Arguments& a) { return v.to_items(a.budget); }},
    {"lower", in_case<TextCase::kLower>},
    {"map", mapped},
    {"reject", selected<false, false>},
    {"rejectattr", selected<true, false>},
    {"replace", replaced},
    {"reverse", reversed},
    {"safe", [](const JinjaValue& v, const Arguments& a) { return v.to_text(a.budget); }},
    {"select", selected<false, true>},
    {"selectattr", selected<true, true>},
    {"string", [](const JinjaValue& v, const Arguments& a) { return v.to_text(a.budget); }},
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
  arguments.budget.work(1, kJinjaCall);
  return found->second(value, arguments);
}

}  // namespace megalith
