// The values of a Jinja template: Python's None, bool, int, float, str, list and dict, Jinja's undefined, and
// callables. All but namespaces are immutable, as in the sandbox that transformers uses for chat templates.
//
// Operations follow Python's, and throw JinjaFault where Python would raise. Sizes are bounded, because templates come
// with downloaded models: no text, list or nesting of values exceeds kMostJinjaBytes, kMostJinjaItems and
// kDeepestJinjaValue, nor all together a budget (jinja_budget.h).
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
inline constexpr size_t kMostJinjaItems = 1 << 20;  // of a list, including nested ones
inline constexpr int kDeepestJinjaValue = 64;
inline constexpr size_t kJinjaMemberBytes = 128;  // least size of a name with a value

class JinjaValue;
using JinjaItems = std::vector<JinjaValue>;
using JinjaMembers = std::vector<std::pair<std::string, JinjaValue>>;

// The arguments of a call, positional and named.
struct JinjaArguments {
  explicit JinjaArguments(JinjaBudget& the_budget) : budget(the_budget), held(&the_budget) {}

  JinjaBudget& budget;
  JinjaItems by_place;
  JinjaMembers by_name;
  JinjaHeld held;

  // The argument at this position or of this name; null if missing.
  const JinjaValue* find(size_t place, std::string_view name) const;
  const JinjaValue& get(size_t place, std::string_view name) const;  // JinjaFault if missing
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
    size_t num_items = 0;  // including those of its items
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
  // budget  null outside of rendering. Must outlive the value.
  JinjaValue(std::string_view text, JinjaBudget* budget);
  // A repeated name's last value counts, at the first one's position.
  JinjaValue(JinjaMembers members, JinjaBudget* budget);
  JinjaValue(JinjaFunction function, JinjaBudget* budget);
  JinjaValue(const char*) = delete;  // would convert to bool
  // Owned by the renderer.
  JinjaValue(JinjaNamespace* space) : value_(space) {}
  static JinjaValue undefined(std::string_view name);
  static JinjaValue from_json(const OrderedJson& json);

  bool is_undefined() const { return std::holds_alternative<Undefined>(value_); }
  bool is_none() const { return std::holds_alternative<std::nullptr_t>(value_); }
  bool is_bool() const { return std::holds_alternative<bool>(value_); }
  bool is_int() const { return std::holds_alternative<int64_t>(value_); }
  bool is_float() const { return std::holds_alternative<double>(value_); }
  bool is_number() const { return is_bool() || is_int() || is_float(); }
  // Null if the value is of another type.
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
  JinjaValue to_items(JinjaBudget& budget) const;  // what a loop iterates over; JinjaFault if not iterable
  int64_t length(JinjaBudget& budget) const;       // len()
  size_t num_items() const;                        // of lists and dicts, including nested ones
  int depth() const;
  // A dict's or namespace's member; null if there is none.
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

// Builds a text. JinjaFault if it becomes too long.
class JinjaWriter {
 public:
  explicit JinjaWriter(JinjaBudget& budget) : held_(&budget) {}
  void add(std::string_view part);
  void repeat(std::string_view part, size_t count);
  const std::string& text() const { return text_; }
  JinjaBudget& budget() const { return *held_.budget(); }
  JinjaValue take();  // the writer must not be used afterwards

 private:
  void make_room(size_t count, size_t size);

  std::string text_;
  JinjaHeld held_;
};

// Builds a list. JinjaFault if it becomes too long or too deep.
class JinjaListMaker {
 public:
  explicit JinjaListMaker(JinjaBudget* budget);
  void add(JinjaValue value);
  void add_text(std::string_view text) { add(JinjaValue(text, list_->held.budget())); }
  void add_items(const JinjaItems& items);
  const JinjaItems& items() const { return list_->items; }
  JinjaValue take();  // the maker must not be used afterwards

 private:
  std::shared_ptr<JinjaValue::List> list_;
};

bool jinja_equal(const JinjaValue& a, const JinjaValue& b, JinjaBudget& budget);
// < 0, 0 or > 0 for types that Python orders; JinjaFault otherwise.
int jinja_compare(const JinjaValue& a, const JinjaValue& b, JinjaBudget& budget);
bool jinja_contains(const JinjaValue& container, const JinjaValue& item, JinjaBudget& budget);
// `operation` is one of + - * / // % **.
JinjaValue jinja_arithmetic(std::string_view operation, const JinjaValue& a, const JinjaValue& b, JinjaBudget& budget);
// value[index]; undefined if there is no such item.
JinjaValue jinja_item(const JinjaValue& value, const JinjaValue& index, JinjaBudget& budget);
// value[begin:end:step] of a list or text; none for an omitted bound.
JinjaValue jinja_slice(const JinjaValue& value, const JinjaValue& begin, const JinjaValue& end, const JinjaValue& step,
                       JinjaBudget& budget);
// Python's json.dumps with ensure_ascii=False; indent < 0: on one line.
JinjaValue jinja_to_json(const JinjaValue& value, int64_t indent, JinjaBudget& budget);
// The first occurrence at or after `begin`, or npos, in time linear in the text's length.
size_t find_in_text(std::string_view text, std::string_view what, size_t begin, JinjaBudget& budget);

}  // namespace megalith
