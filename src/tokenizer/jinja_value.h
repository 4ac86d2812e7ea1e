// The values of a Jinja template: Python's None, bool, int, float, str, list and dict, Jinja's undefined, and what can
// be called. All but namespaces are immutable, as they are in the sandbox in which transformers renders chat templates.
//
// Operations follow Python's, and throw JinjaFault where Python would raise. Sizes are bounded, because templates come
// with downloaded models: no text, list or nesting of values grows beyond kMostJinjaBytes, kMostJinjaItems and
// kDeepestJinjaValue, and all together not beyond a budget (jinja_budget.h).
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
#include "tokenizer/jinja_budget.h"

namespace megalith {

inline constexpr size_t kMostJinjaBytes = size_t{16} << 20;
inline constexpr size_t kMostJinjaItems = 1 << 20;  // of a list with everything in it
inline constexpr int kDeepestJinjaValue = 64;
inline constexpr size_t kJinjaMemberBytes = 128;  // that a name with a value takes, at least

class JinjaValue;
using JinjaItems = std::vector<JinjaValue>;
using JinjaMembers = std::vector<std::pair<std::string, JinjaValue>>;

// The arguments of a call, by place and by name.
struct JinjaArguments {
  explicit JinjaArguments(JinjaBudget& the_budget) : budget(the_budget), held(&the_budget) {}

  JinjaBudget& budget;
  JinjaItems by_place;
  JinjaMembers by_name;
  JinjaHeld held;

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
  struct Text {
    std::string text;
    JinjaHeld held;
  };
  struct List {
    JinjaItems items;
    size_t num_items = 0;  // with those of its items
    int depth = 0;
    JinjaHeld held;
  };
  struct Dict {
    JinjaMembers members;
    size_t num_items = 0;
    int depth = 0;
    JinjaHeld held;
  };
  struct Function {
    JinjaFunction function;
    JinjaHeld held;
  };

  JinjaValue() : value_(Undefined{}) {}
  JinjaValue(std::nullptr_t) : value_(nullptr) {}
  JinjaValue(bool value) : value_(value) {}
  JinjaValue(int64_t value) : value_(value) {}
  JinjaValue(double value) : value_(value) {}
  // budget  null outside of rendering. A value lives no longer than its budget.
  JinjaValue(std::string_view text, JinjaBudget* budget);
  // Two equal names: the last counts, in the first one's place.
  JinjaValue(JinjaMembers members, JinjaBudget* budget);
  JinjaValue(JinjaFunction function, JinjaBudget* budget);
  JinjaValue(const char*) = delete;  // it would become a truth value
  // It belongs to the renderer.
  JinjaValue(JinjaNamespace* space) : value_(space) {}
  static JinjaValue undefined(std::string_view name);
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

  bool is_true() const;                            // as a condition
  std::string kind() const;                        // "a text", for messages
  int64_t to_int() const;                          // of an int or bool; JinjaFault otherwise
  double to_double() const;                        // of a number; JinjaFault otherwise
  JinjaValue to_text(JinjaBudget& budget) const;   // Python's str()
  JinjaValue to_items(JinjaBudget& budget) const;  // the list that a loop goes over; JinjaFault when it is not iterable
  int64_t length(JinjaBudget& budget) const;       // len()
  size_t num_items() const;                        // of lists and dicts, with everything in them
  int depth() const;
  // What a dict or namespace has by this name; null when there is nothing.
  const JinjaValue* member(std::string_view name, JinjaBudget& budget) const;
  [[noreturn]] void fail_undefined() const;

 private:
  friend class JinjaWriter;
  friend class JinjaListMaker;
  std::variant<Undefined, std::nullptr_t, bool, int64_t, double, std::shared_ptr<const Text>,
               std::shared_ptr<const List>, std::shared_ptr<const Dict>, JinjaNamespace*,
               std::shared_ptr<const Function>>
      value_;
};

// A text in the making. JinjaFault when it becomes too long.
class JinjaWriter {
 public:
  explicit JinjaWriter(JinjaBudget& budget) : held_(&budget) {}
  void add(std::string_view part);
  void repeat(std::string_view part, size_t count);
  const std::string& text() const { return text_; }
  JinjaBudget& budget() const { return *held_.budget(); }
  JinjaValue take();  // the writer is not used afterwards

 private:
  void make_room(size_t count, size_t size);

  std::string text_;
  JinjaHeld held_;
};

// A list in the making. JinjaFault when it becomes too long or too deep.
class JinjaListMaker {
 public:
  explicit JinjaListMaker(JinjaBudget* budget);
  void add(JinjaValue value);
  void add_text(std::string_view text) { add(JinjaValue(text, list_->held.budget())); }
  void add_items(const JinjaItems& items);
  const JinjaItems& items() const { return list_->items; }
  JinjaValue take();  // the maker is not used afterwards

 private:
  std::shared_ptr<JinjaValue::List> list_;
};

bool jinja_equal(const JinjaValue& a, const JinjaValue& b, JinjaBudget& budget);
// < 0, 0 or > 0 where Python orders the two; JinjaFault otherwise.
int jinja_compare(const JinjaValue& a, const JinjaValue& b, JinjaBudget& budget);
bool jinja_contains(const JinjaValue& container, const JinjaValue& item, JinjaBudget& budget);
// `operation` is one of + - * / // % **.
JinjaValue jinja_arithmetic(std::string_view operation, const JinjaValue& a, const JinjaValue& b, JinjaBudget& budget);
// value[index]; undefined where nothing is there.
JinjaValue jinja_item(const JinjaValue& value, const JinjaValue& index, JinjaBudget& budget);
// value[begin:end:step] of a list or text; none stands for what is left out.
JinjaValue jinja_slice(const JinjaValue& value, const JinjaValue& begin, const JinjaValue& end, const JinjaValue& step,
                       JinjaBudget& budget);
// Python's json.dumps without escapes of what is not ASCII; indent < 0: on one line.
JinjaValue jinja_to_json(const JinjaValue& value, int64_t indent, JinjaBudget& budget);
// The first place at or after `begin`, or npos, in time that grows with the length of the text and no faster.
size_t find_in_text(std::string_view text, std::string_view what, size_t begin, JinjaBudget& budget);

}  // namespace megalith
