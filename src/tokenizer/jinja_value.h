// The values of a Jinja template: Python's None, bool, int, float, str, list and dict, Jinja's undefined, and what can
// be called. All but namespaces are immutable, as they are in the sandbox in which transformers renders chat templates.
//
// Operations follow Python's, and throw JinjaFault where Python would raise. Sizes are bounded, because templates come
// with downloaded models: no text, list or nesting of values grows beyond kMostJinjaBytes, kMostJinjaItems and
// kDeepestJinjaValue.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/json.h"

namespace megalith {

inline constexpr size_t kMostJinjaBytes = size_t{16} << 20;
inline constexpr size_t kMostJinjaItems = 1 << 20;  // of a list with everything in it
inline constexpr int kDeepestJinjaValue = 64;

// What is wrong; the renderer adds the template's name and line.
struct JinjaFault {
  std::string message;
};

class JinjaValue;
using JinjaItems = std::vector<JinjaValue>;
using JinjaMembers = std::vector<std::pair<std::string, JinjaValue>>;

// The arguments of a call, by place and by name.
struct JinjaArguments {
  JinjaItems by_place;
  JinjaMembers by_name;

  // The argument of this place or name; null when it is not given.
  const JinjaValue* find(size_t place, std::string_view name) const;
  const JinjaValue& get(size_t place, std::string_view name) const;  // JinjaFault when it is not given
};

struct JinjaFunction {
  std::string name;
  std::function<JinjaValue(const JinjaArguments&)> call;
};

using JinjaNamespace = std::map<std::string, JinjaValue, std::less<>>;

class JinjaValue {
 public:
  struct Undefined {
    std::string name;  // for messages
  };
  struct List {
    JinjaItems items;
    size_t num_items = 0;  // with those of its items
    int depth = 0;
  };
  struct Dict {
    JinjaMembers members;
    size_t num_items = 0;
    int depth = 0;
  };

  JinjaValue() : value_(Undefined{}) {}
  JinjaValue(std::nullptr_t) : value_(nullptr) {}
  JinjaValue(bool value) : value_(value) {}
  JinjaValue(int64_t value) : value_(value) {}
  JinjaValue(double value) : value_(value) {}
  JinjaValue(std::string text);
  JinjaValue(std::string_view text) : JinjaValue(std::string(text)) {}
  JinjaValue(const char* text) : JinjaValue(std::string(text)) {}
  JinjaValue(JinjaItems items);
  JinjaValue(JinjaMembers members);  // of two equal names the last counts, in the first one's place
  JinjaValue(JinjaFunction function) : value_(std::make_shared<const JinjaFunction>(std::move(function))) {}
  // It belongs to the renderer.
  JinjaValue(JinjaNamespace* space) : value_(space) {}
  static JinjaValue undefined(std::string_view name) {
    JinjaValue value;
    value.value_ = Undefined{std::string(name)};
    return value;
  }
  static JinjaValue from_json(const OrderedJson& json);

  bool is_undefined() const { return std::holds_alternative<Undefined>(value_); }
  bool is_none() const { return std::holds_alternative<std::nullptr_t>(value_); }
  bool is_bool() const { return std::holds_alternative<bool>(value_); }
  bool is_int() const { return std::holds_alternative<int64_t>(value_); }
  bool is_float() const { return std::holds_alternative<double>(value_); }
  bool is_number() const { return is_bool() || is_int() || is_float(); }
  // Null where the value is something else.
  const std::string* text() const;
  const JinjaItems* items() const;
  const JinjaMembers* members() const;
  JinjaNamespace* space() const;
  const JinjaFunction* function() const;

  bool is_true() const;         // as a condition
  std::string kind() const;     // "a text", for messages
  std::string to_text() const;  // Python's str()
  std::string to_repr() const;  // Python's repr()
  int64_t to_int() const;       // of an int or bool; JinjaFault otherwise
  double to_double() const;     // of a number; JinjaFault otherwise
  JinjaItems to_items() const;  // what a loop goes over; JinjaFault when it is not iterable
  int64_t length() const;       // len()
  size_t num_items() const;     // of lists and dicts, with everything in them
  int depth() const;
  const JinjaValue* member(std::string_view name) const;  // of a dict or namespace; null when it is not there
  [[noreturn]] void fail_undefined() const;

 private:
  std::variant<Undefined, std::nullptr_t, bool, int64_t, double, std::shared_ptr<const std::string>,
               std::shared_ptr<const List>, std::shared_ptr<const Dict>, JinjaNamespace*,
               std::shared_ptr<const JinjaFunction>>
      value_;
};

bool jinja_equal(const JinjaValue& a, const JinjaValue& b);
// < 0, 0 or > 0 where Python orders the two; JinjaFault otherwise.
int jinja_compare(const JinjaValue& a, const JinjaValue& b);
bool jinja_contains(const JinjaValue& container, const JinjaValue& item);
// `operation` is one of + - * / // % **.
JinjaValue jinja_arithmetic(std::string_view operation, const JinjaValue& a, const JinjaValue& b);
// value[index]; undefined where nothing is there.
JinjaValue jinja_item(const JinjaValue& value, const JinjaValue& index);
// value[begin:end:step] of a list or text; none stands for what is left out.
JinjaValue jinja_slice(const JinjaValue& value, const JinjaValue& begin, const JinjaValue& end, const JinjaValue& step);
// Python's json.dumps without escapes of what is not ASCII; indent < 0: on one line.
std::string jinja_to_json(const JinjaValue& value, int64_t indent);

}  // namespace megalith
