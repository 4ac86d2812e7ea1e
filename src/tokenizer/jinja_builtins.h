// What Jinja and Python bring along: filters, tests, methods of texts and dicts, functions.
#pragma once

#include <functional>
#include <string_view>

#include "tokenizer/jinja_value.h"

namespace megalith {

// value | name(arguments). JinjaFault for an unknown filter.
JinjaValue apply_jinja_filter(std::string_view name, const JinjaValue& value, const JinjaArguments& arguments);
// value is name(arguments). JinjaFault for an unknown test.
bool apply_jinja_test(std::string_view name, const JinjaValue& value, const JinjaArguments& arguments);
// A method of a text or a dict, bound to it; undefined where there is none of this name.
JinjaValue jinja_method(const JinjaValue& value, std::string_view name);
// range, dict, raise_exception, strftime_now.
JinjaMembers jinja_functions();

// raise_exception was called: the template itself refuses what it is given.
struct JinjaRefusal {
  std::string message;
};

}  // namespace megalith
