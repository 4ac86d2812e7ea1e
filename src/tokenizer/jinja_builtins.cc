// Tests, dicts and functions; filters and text methods have their own files. See jinja_builtins.h.
#include "tokenizer/jinja_builtins.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <ctime>
#include <map>

#include "tokenizer/jinja_text.h"

namespace megalith {
namespace {

using Arguments = JinjaArguments;
using TestRule = bool (*)(const JinjaValue& value, const Arguments& arguments);

// True if all cased letters have this case and there is at least one, as in Python's islower().
bool has_case(const JinjaValue& value, bool lower, JinjaBudget& budget) {
  bool found = false;
  const JinjaValue text = value.to_text(budget);
  budget.work(text.text()->size());
  for (const char c : *text.text()) {
    if (c >= 'a' && c <= 'z') {
      if (!lower) return false;
      found = true;
    } else if (c >= 'A' && c <= 'Z') {
      if (lower) return false;
      found = true;
    }
  }
  return found;
}

bool is_equal_to(const JinjaValue& value, const Arguments& a) {
  return jinja_equal(value, a.get(0, "other"), a.budget);
}
bool differs_from(const JinjaValue& value, const Arguments& a) { return !is_equal_to(value, a); }
int order(const JinjaValue& value, const Arguments& a) { return jinja_compare(value, a.get(0, "other"), a.budget); }
bool is_greater(const JinjaValue& value, const Arguments& a) { return order(value, a) > 0; }
bool is_less(const JinjaValue& value, const Arguments& a) { return order(value, a) < 0; }
bool is_at_least(const JinjaValue& value, const Arguments& a) { return order(value, a) >= 0; }
bool is_at_most(const JinjaValue& value, const Arguments& a) { return order(value, a) <= 0; }

const std::map<std::string_view, TestRule> kJinjaTests = {
    {"defined", [](const JinjaValue& v, const Arguments&) { return !v.is_undefined(); }},
    {"undefined", [](const JinjaValue& v, const Arguments&) { return v.is_undefined(); }},
    {"none", [](const JinjaValue& v, const Arguments&) { return v.is_none(); }},
    {"string", [](const JinjaValue& v, const Arguments&) { return v.text() != nullptr; }},
    {"number", [](const JinjaValue& v, const Arguments&) { return v.is_number(); }},
    {"integer", [](const JinjaValue& v, const Arguments&) { return v.is_int(); }},
    {"float", [](const JinjaValue& v, const Arguments&) { return v.is_float(); }},
    {"boolean", [](const JinjaValue& v, const Arguments&) { return v.is_bool(); }},
    {"true", [](const JinjaValue& v, const Arguments&) { return v.is_bool() && v.is_true(); }},
    {"false", [](const JinjaValue& v, const Arguments&) { return v.is_bool() && !v.is_true(); }},
    {"mapping", [](const JinjaValue& v, const Arguments&) { return v.members() != nullptr; }},
    {"iterable",
     [](const JinjaValue& v, const Arguments&) {
       return v.is_undefined() || v.text() != nullptr || v.items() != nullptr || v.members() != nullptr;
     }},
    {"sequence",
     [](const JinjaValue& v, const Arguments&) {
       return v.is_undefined() || v.text() != nullptr || v.items() != nullptr || v.members() != nullptr;
     }},
    {"callable", [](const JinjaValue& v, const Arguments&) { return v.function() != nullptr; }},
    {"odd", [](const JinjaValue& v, const Arguments&) { return v.to_int() % 2 != 0; }},
    {"even", [](const JinjaValue& v, const Arguments&) { return v.to_int() % 2 == 0; }},
    {"divisibleby",
     [](const JinjaValue& v, const Arguments& a) {
       return jinja_arithmetic("%", v, a.get(0, "num"), a.budget).to_int() == 0;
     }},
    {"lower", [](const JinjaValue& v, const Arguments& a) { return has_case(v, true, a.budget); }},
    {"upper", [](const JinjaValue& v, const Arguments& a) { return has_case(v, false, a.budget); }},
    {"in", [](const JinjaValue& v, const Arguments& a) { return jinja_contains(a.get(0, "seq"), v, a.budget); }},
    {"sameas",
     [](const JinjaValue& v, const Arguments& a) {
       const JinjaValue& other = a.get(0, "other");
       return v.kind() == other.kind() && v.is_float() == other.is_float() && jinja_equal(v, other, a.budget);
     }},
    {"eq", is_equal_to},
    {"equalto", is_equal_to},
    {"==", is_equal_to},
    {"ne", differs_from},
    {"gt", is_greater},
    {"greaterthan", is_greater},
    {"ge", is_at_least},
    {"lt", is_less},
    {"lessthan", is_less},
    {"le", is_at_most},
};

JinjaValue bound(JinjaBudget& budget, std::string_view name, std::function<JinjaValue(const Arguments&)> call) {
  return {JinjaFunction{std::string(name), std::move(call)}, &budget};
}

JinjaValue dict_method(const JinjaValue& dict, std::string_view name, JinjaBudget& budget) {
  if (name == "get") {
    return bound(budget, name, [dict](const Arguments& arguments) -> JinjaValue {
      const JinjaValue& key = arguments.get(0, "key");
      const JinjaValue* found = key.text() == nullptr ? nullptr : dict.member(*key.text(), arguments.budget);
      if (found != nullptr) return *found;
      const JinjaValue* otherwise = arguments.find(1, "default");
      return otherwise != nullptr ? *otherwise : JinjaValue(nullptr);
    });
  }
  if (name == "items" || name == "keys" || name == "values") {
    return bound(budget, name, [dict, what = name[0]](const Arguments& arguments) -> JinjaValue {
      if (what == 'i') return jinja_pairs(*dict.members(), arguments.budget);
      if (what == 'k') return dict.to_items(arguments.budget);
      JinjaListMaker items(&arguments.budget);
      for (const auto& [key, value] : *dict.members()) items.add(value);
      return items.take();
    });
  }
  for (const std::string_view changing : {"update", "pop", "popitem", "setdefault", "clear"}) {
    if (name != changing) continue;
    return bound(budget, name, [changing](const Arguments&) -> JinjaValue {
      throw JinjaFault{fmt::format("'{}' changes a dict, which templates may not", changing)};
    });
  }
  return {};
}

JinjaValue list_method(const JinjaValue& list, std::string_view name, JinjaBudget& budget) {
  if (name == "count" || name == "index") {
    return bound(budget, name, [list, name](const Arguments& arguments) -> JinjaValue {
      int64_t count = 0, place = 0;
      for (const JinjaValue& item : *list.items()) {
        const bool is_equal = jinja_equal(item, arguments.get(0, "value"), arguments.budget);
        if (is_equal && name == "index") return place;
        count += is_equal ? 1 : 0;
        ++place;
      }
      if (name == "index") throw JinjaFault{"'index' of what the list does not hold"};
      return count;
    });
  }
  for (const std::string_view changing : {"append", "extend", "insert", "pop", "remove", "reverse", "sort", "clear"}) {
    if (name != changing) continue;
    return bound(budget, name, [changing](const Arguments&) -> JinjaValue {
      throw JinjaFault{fmt::format("'{}' changes a list, which templates may not", changing)};
    });
  }
  return {};
}

JinjaValue make_range(const Arguments& arguments) {
  const JinjaItems& given = arguments.by_place;
  if (given.empty() || given.size() > 3) throw JinjaFault{"range takes one to three whole numbers"};
  const int64_t begin = given.size() > 1 ? given[0].to_int() : 0, end = given[given.size() > 1 ? 1 : 0].to_int();
  const int64_t step = given.size() > 2 ? given[2].to_int() : 1;
  if (step == 0) throw JinjaFault{"range with step 0"};
  constexpr size_t kLongestRange = 100'000;  // as in Jinja's sandbox
  JinjaListMaker items(&arguments.budget);
  for (int64_t i = begin; step > 0 ? i < end : i > end;) {
    if (items.items().size() == kLongestRange) throw JinjaFault{"a range of more than 100000 numbers"};
    items.add(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return items.take();
}

JinjaValue formatted_time(const Arguments& arguments) {
  const JinjaValue format = arguments.get(0, "format").to_text(arguments.budget);
  const std::string& form = *format.text();
  if (form.empty() || form.size() > 200) return {"", &arguments.budget};
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::localtime_r(&now, &parts);
  std::array<char, 1024> text{};
  arguments.budget.work(1, 20'000);  // a directive's output may be long
  const size_t size = std::strftime(text.data(), text.size(), form.c_str(), &parts);
  return {std::string_view(text.data(), size), &arguments.budget};
}

}  // namespace

bool apply_jinja_test(std::string_view name, const JinjaValue& value, const JinjaArguments& arguments) {
  const auto found = kJinjaTests.find(name);
  if (found == kJinjaTests.end()) throw JinjaFault{fmt::format("the test '{}' is not known here", name)};
  return found->second(value, arguments);
}

JinjaValue jinja_pairs(const JinjaMembers& members, JinjaBudget& budget) {
  JinjaListMaker items(&budget);
  for (const auto& [key, value] : members) {
    JinjaListMaker pair(&budget);
    pair.add_text(key);
    pair.add(value);
    items.add(pair.take());
  }
  return items.take();
}

JinjaValue jinja_method(const JinjaValue& value, std::string_view name, JinjaBudget& budget) {
  if (value.text() != nullptr) return jinja_text_method(value, name, budget);
  if (value.members() != nullptr) return dict_method(value, name, budget);
  if (value.items() != nullptr) return list_method(value, name, budget);
  return {};
}

JinjaMembers jinja_functions(JinjaBudget& budget) {
  return {{"range", bound(budget, "range", make_range)},
          {"dict", bound(budget, "dict",
                         [](const Arguments& arguments) -> JinjaValue {
                           return {arguments.by_name, &arguments.budget};
                         })},
          {"strftime_now", bound(budget, "strftime_now", formatted_time)},
          {"raise_exception", bound(budget, "raise_exception", [](const Arguments& arguments) -> JinjaValue {
             throw JinjaRefusal{*arguments.get(0, "message").to_text(arguments.budget).text()};
           })}};
}

}  // namespace megalith
