// Built-ins of Jinja and Python: filters, tests, methods of texts and dicts, functions.
#pragma once

#include <functional>
#include <string_view>

#include "tokenizer/jinja_value.h"

namespace megalith {

// Fixed cost of a call of a test, filter or function.
inline constexpr int64_t kJinjaCall = 100;

// value | name(arguments). JinjaFault for an unknown filter.
JinjaValue apply_jinja_filter(std::string_view name, const JinjaValue& value, const JinjaArguments& arguments);
// value is name(arguments). JinjaFault for an unknown test.
bool apply_jinja_test(std::string_view name, const JinjaValue& value, const JinjaArguments& arguments);
// A method of a text or a dict, bound to it; undefined if there is none of this name.
JinjaValue jinja_method(const JinjaValue& value, std::string_view name, JinjaBudget& budget);
// The result of a dict's items().
JinjaValue jinja_pairs(const JinjaMembers& members, JinjaBudget& budget);
// range, dict, raise_exception, strftime_now.
JinjaMembers jinja_functions(JinjaBudget& budget);

// raise_exception was called: the template itself refuses its input.
struct JinjaRefusal {
  std::string message;
};

}  // namespace megalith
