// Values as Python has them; see jinja_value.h.
#include "tokenizer/jinja_value.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "tokenizer/utf8.h"

namespace megalith {
namespace {

template <typename Container>
void measure_jinja(Container& container, const JinjaValue& value) {
  container.num_items += 1 + value.num_items();
  container.depth = std::max(container.depth, value.depth() + 1);
  if (container.num_items > kMostJinjaItems) {
    throw JinjaFault{fmt::format("a list of more than {} items", kMostJinjaItems)};
  }
  if (container.depth > kDeepestJinjaValue) {
    throw JinjaFault{fmt::format("lists that nest deeper than {}", kDeepestJinjaValue)};
  }
}

std::string jinja_float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

bool is_printable(uint32_t code_point) {
  if (code_point == ' ') return true;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code_point))) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

std::string python_quoted(std::string_view text) {
  const bool uses_double = text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos;
  const char quote = uses_double ? '"' : '\'';
  std::string out(1, quote);
  while (!text.empty()) {
    const Utf8Step step = decode_utf8(text);
    const uint32_t c = step.code_point;
    if (c == static_cast<uint32_t>(quote) || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n' || c == '\r' || c == '\t') {
      out += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if (is_printable(c)) {
      append_utf8(c, out);
    } else {
      out += c < 0x100     ? fmt::format("\\x{:02x}", c)
             : c < 0x10000 ? fmt::format("\\u{:04x}", c)
                           : fmt::format("\\U{:08x}", c);
    }
    text.remove_prefix(static_cast<size_t>(step.length));
  }
  return out + quote;
}

std::string json_quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        if (static_cast<uint8_t>(c) < 0x20) {
          out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        } else {
          out += c;
        }
    }
  }
  return out + '"';
}

void write_json(const JinjaValue& value, int64_t indent, int64_t level, std::string& out) {
  if (out.size() > kMostJinjaBytes) throw JinjaFault{"tojson gives more text than is allowed"};
  const auto line = [&](int64_t at) {
    if (indent >= 0) out += "\n" + std::string(static_cast<size_t>(indent * at), ' ');
  };
  const auto between = [&](bool is_first) {
    if (!is_first) out += indent >= 0 ? "," : ", ";
    line(level + 1);
  };
  if (const JinjaItems* items = value.items()) {
    if (items->empty()) {
      out += "[]";
      return;
    }
    out += '[';
    for (size_t i = 0; i < items->size(); ++i) {
      between(i == 0);
      write_json((*items)[i], indent, level + 1, out);
    }
    line(level);
    out += ']';
  } else if (const JinjaMembers* members = value.members()) {
    if (members->empty()) {
      out += "{}";
      return;
    }
    out += '{';
    for (size_t i = 0; i < members->size(); ++i) {
      between(i == 0);
      out += json_quoted((*members)[i].first) + ": ";
      write_json((*members)[i].second, indent, level + 1, out);
    }
    line(level);
    out += '}';
  } else if (const std::string* text = value.text()) {
    out += json_quoted(*text);
  } else if (value.is_none()) {
    out += "null";
  } else if (value.is_bool()) {
    out += value.is_true() ? "true" : "false";
  } else if (value.is_float() && !std::isfinite(value.to_double())) {
    out += std::isnan(value.to_double()) ? "NaN" : value.to_double() > 0 ? "Infinity" : "-Infinity";
  } else if (value.is_number()) {
    out += value.to_text();
  } else {
    throw JinjaFault{fmt::format("tojson of {}", value.kind())};
  }
}

[[noreturn]] void fail_overflow() { throw JinjaFault{"a whole number beyond 64 bits"}; }

int64_t floor_quotient(int64_t a, int64_t b) {
  if (b == 0) throw JinjaFault{"division by zero"};
  if (b == -1) {
    if (a == INT64_MIN) fail_overflow();
    return -a;
  }
  const int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

int64_t int_power(int64_t base, int64_t exponent) {
  if (exponent == 0 || base == 1) return 1;
  if (base == 0) return 0;
  if (base == -1) return exponent % 2 == 0 ? 1 : -1;
  int64_t result = 1;
  for (int64_t i = 0; i < exponent; ++i) {  // at most 64 times
    if (__builtin_mul_overflow(result, base, &result)) fail_overflow();
  }
  return result;
}

JinjaValue int_arithmetic(std::string_view operation, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflows = false;
  if (operation == "+") {
    overflows = __builtin_add_overflow(a, b, &result);
  } else if (operation == "-") {
    overflows = __builtin_sub_overflow(a, b, &result);
  } else if (operation == "*") {
    overflows = __builtin_mul_overflow(a, b, &result);
  } else if (operation == "//") {
    result = floor_quotient(a, b);
  } else if (operation == "%") {
    result = b == -1 ? 0 : a - b * floor_quotient(a, b);
  } else if (operation == "**" && b >= 0) {
    result = int_power(a, b);
  } else if (operation == "**") {
    return std::pow(static_cast<double>(a), static_cast<double>(b));
  } else {
    if (b == 0) throw JinjaFault{"division by zero"};
    return static_cast<double>(a) / static_cast<double>(b);
  }
  if (overflows) fail_overflow();
  return result;
}

JinjaValue float_arithmetic(std::string_view operation, double a, double b) {
  if (operation == "+") return a + b;
  if (operation == "-") return a - b;
  if (operation == "*") return a * b;
  if (operation == "**") return std::pow(a, b);
  if (b == 0) throw JinjaFault{"division by zero"};
  if (operation == "/") return a / b;
  if (operation == "//") return std::floor(a / b);
  const double rest = std::fmod(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

// A list or a text `times` times in a row.
JinjaValue repeated(const JinjaValue& value, int64_t times) {
  const auto count = static_cast<size_t>(std::max<int64_t>(times, 0));
  if (const std::string* text = value.text()) {
    if (!text->empty() && count > kMostJinjaBytes / text->size()) throw JinjaFault{"a text longer than is allowed"};
    std::string out;
    for (size_t i = 0; i < count && !text->empty(); ++i) out += *text;
    return out;
  }
  const JinjaItems& items = *value.items();
  if (!items.empty() && count > kMostJinjaItems / items.size()) throw JinjaFault{"a list longer than is allowed"};
  JinjaItems out;
  for (size_t i = 0; i < count && !items.empty(); ++i) out.insert(out.end(), items.begin(), items.end());
  return out;
}

std::vector<std::string_view> characters_of(std::string_view text) {
  std::vector<std::string_view> characters;
  for (size_t i = 0; i < text.size();) {
    const auto length = static_cast<size_t>(decode_utf8(text.substr(i)).length);
    characters.push_back(text.substr(i, length));
    i += length;
  }
  return characters;
}

// The places that a slice takes of `length`, as Python's slice.indices() finds them.
std::vector<size_t> sliced_places(int64_t length, const JinjaValue& begin, const JinjaValue& end,
                                  const JinjaValue& step_value) {
  const int64_t step = step_value.is_none() ? 1 : step_value.to_int();
  if (step == 0) throw JinjaFault{"a slice with step 0"};
  const int64_t least = step < 0 ? -1 : 0, most = step < 0 ? length - 1 : length;
  const auto place = [&](const JinjaValue& value, int64_t otherwise) {
    if (value.is_none()) return otherwise;
    const int64_t given = value.to_int();
    return std::clamp(given < 0 ? std::max(given, -length - 1) + length : std::min(given, length), least, most);
  };
  const int64_t first = place(begin, step < 0 ? most : least), last = place(end, step < 0 ? least : most);
  std::vector<size_t> places;
  if (step > 0) {
    for (int64_t i = first; i < last; i += std::min(step, length + 1)) places.push_back(static_cast<size_t>(i));
  } else {
    for (int64_t i = first; i > last; i += std::max(step, -length - 1)) places.push_back(static_cast<size_t>(i));
  }
  return places;
}

}  // namespace

const JinjaValue* JinjaArguments::find(size_t place, std::string_view name) const {
  if (place < by_place.size()) return &by_place[place];
  for (const auto& [key, value] : by_name) {
    if (key == name) return &value;
  }
  return nullptr;
}

const JinjaValue& JinjaArguments::get(size_t place, std::string_view name) const {
  if (const JinjaValue* value = find(place, name)) return *value;
  throw JinjaFault{fmt::format("the argument {} is missing", name)};
}

JinjaValue::JinjaValue(std::string text) {
  if (text.size() > kMostJinjaBytes) throw JinjaFault{fmt::format("a text of more than {} bytes", kMostJinjaBytes)};
  value_ = std::make_shared<const std::string>(std::move(text));
}

JinjaValue::JinjaValue(JinjaItems items) {
  auto list = std::make_shared<List>();
  for (const JinjaValue& item : items) measure_jinja(*list, item);
  list->items = std::move(items);
  value_ = std::shared_ptr<const List>(std::move(list));
}

JinjaValue::JinjaValue(JinjaMembers members) {
  auto dict = std::make_shared<Dict>();
  std::map<std::string_view, size_t> places;
  std::vector<size_t> kept;
  for (size_t i = 0; i < members.size(); ++i) {
    const auto [place, is_new] = places.emplace(members[i].first, kept.size());
    if (is_new) {
      kept.push_back(i);
    } else {
      members[kept[place->second]].second = members[i].second;
    }
  }
  for (const size_t i : kept) {
    measure_jinja(*dict, members[i].second);
    dict->members.push_back(members[i]);
  }
  value_ = std::shared_ptr<const Dict>(std::move(dict));
}

JinjaValue JinjaValue::from_json(const OrderedJson& json) {
  if (json.is_object()) {
    JinjaMembers members;
    for (const auto& [key, value] : json.items()) members.emplace_back(key, from_json(value));
    return members;
  }
  if (json.is_array()) {
    JinjaItems items;
    for (const OrderedJson& value : json) items.push_back(from_json(value));
    return items;
  }
  if (json.is_null()) return nullptr;
  const Json scalar(json);
  if (scalar.is_boolean()) return json_as<bool>(scalar, "a value");
  if (const std::string* text = try_text(scalar)) return *text;
  if (!scalar.is_number_float()) {
    if (const std::optional<int64_t> whole = try_whole_number(scalar)) return *whole;
  }
  return json_as<double>(scalar, "a value");
}

const std::string* JinjaValue::text() const {
  const auto* text = std::get_if<std::shared_ptr<const std::string>>(&value_);
  return text == nullptr ? nullptr : text->get();
}

const JinjaItems* JinjaValue::items() const {
  const auto* list = std::get_if<std::shared_ptr<const List>>(&value_);
  return list == nullptr ? nullptr : &(*list)->items;
}

const JinjaMembers* JinjaValue::members() const {
  const auto* dict = std::get_if<std::shared_ptr<const Dict>>(&value_);
  return dict == nullptr ? nullptr : &(*dict)->members;
}

JinjaNamespace* JinjaValue::space() const {
  const auto* space = std::get_if<JinjaNamespace*>(&value_);
  return space == nullptr ? nullptr : *space;
}

const JinjaFunction* JinjaValue::function() const {
  const auto* function = std::get_if<std::shared_ptr<const JinjaFunction>>(&value_);
  return function == nullptr ? nullptr : function->get();
}

bool JinjaValue::is_true() const {
  if (is_undefined() || is_none()) return false;
  if (const std::string* t = text()) return !t->empty();
  if (const JinjaItems* list = items()) return !list->empty();
  if (const JinjaMembers* dict = members()) return !dict->empty();
  return is_number() ? to_double() != 0 : true;
}

std::string JinjaValue::kind() const {
  if (is_undefined()) return "an undefined value";
  if (is_none()) return "none";
  if (is_bool()) return "a truth value";
  if (is_number()) return "a number";
  if (text() != nullptr) return "a text";
  if (items() != nullptr) return "a list";
  if (members() != nullptr) return "a dict";
  return space() != nullptr ? "a namespace" : "a function";
}

std::string JinjaValue::to_text() const {
  if (is_undefined()) return "";
  if (const std::string* t = text()) return *t;
  return to_repr();
}

std::string JinjaValue::to_repr() const {
  if (is_undefined()) return "Undefined";
  if (is_none()) return "None";
  if (is_bool()) return is_true() ? "True" : "False";
  if (is_int()) return fmt::format("{}", std::get<int64_t>(value_));
  if (is_float()) return jinja_float_text(std::get<double>(value_));
  if (const std::string* t = text()) return python_quoted(*t);
  if (function() != nullptr) return fmt::format("<function {}>", function()->name);
  if (space() != nullptr) return "<Namespace>";
  std::string out = items() != nullptr ? "[" : "{";
  const auto add = [&](const std::string& part) {
    out += (out.size() > 1 ? ", " : "") + part;
    if (out.size() > kMostJinjaBytes) throw JinjaFault{"a text longer than is allowed"};
  };
  if (const JinjaItems* list = items()) {
    for (const JinjaValue& item : *list) add(item.to_repr());
    return out + "]";
  }
  for (const auto& [key, value] : *members()) add(python_quoted(key) + ": " + value.to_repr());
  return out + "}";
}

void JinjaValue::fail_undefined() const {
  const auto* undefined = std::get_if<Undefined>(&value_);
  const std::string name = undefined == nullptr || undefined->name.empty() ? "a value" : undefined->name;
  throw JinjaFault{fmt::format("{} is undefined", name)};
}

int64_t JinjaValue::to_int() const {
  if (is_undefined()) fail_undefined();
  if (is_bool()) return is_true() ? 1 : 0;
  if (!is_int()) throw JinjaFault{fmt::format("{} stands where a whole number is needed", kind())};
  return std::get<int64_t>(value_);
}

double JinjaValue::to_double() const {
  if (is_float()) return std::get<double>(value_);
  if (is_bool()) return std::get<bool>(value_) ? 1 : 0;
  return static_cast<double>(to_int());
}

JinjaItems JinjaValue::to_items() const {
  if (is_undefined()) return {};
  if (const JinjaItems* list = items()) return *list;
  JinjaItems out;
  if (const JinjaMembers* dict = members()) {
    for (const auto& [key, value] : *dict) out.emplace_back(key);
    return out;
  }
  if (const std::string* t = text()) {
    if (t->size() > kMostJinjaItems) throw JinjaFault{"a text that is too long to go through its characters"};
    for (const std::string_view c : characters_of(*t)) out.emplace_back(c);
    return out;
  }
  throw JinjaFault{fmt::format("{} cannot be gone through", kind())};
}

int64_t JinjaValue::length() const {
  if (is_undefined()) return 0;
  if (const JinjaItems* list = items()) return static_cast<int64_t>(list->size());
  if (const JinjaMembers* dict = members()) return static_cast<int64_t>(dict->size());
  const std::string* t = text();
  if (t == nullptr) throw JinjaFault{fmt::format("{} has no length", kind())};
  return std::count_if(t->begin(), t->end(), [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; });
}

size_t JinjaValue::num_items() const {
  if (const auto* list = std::get_if<std::shared_ptr<const List>>(&value_)) return (*list)->num_items;
  if (const auto* dict = std::get_if<std::shared_ptr<const Dict>>(&value_)) return (*dict)->num_items;
  return 0;
}

int JinjaValue::depth() const {
  if (const auto* list = std::get_if<std::shared_ptr<const List>>(&value_)) return (*list)->depth;
  if (const auto* dict = std::get_if<std::shared_ptr<const Dict>>(&value_)) return (*dict)->depth;
  return 0;
}

const JinjaValue* JinjaValue::member(std::string_view name) const {
  if (const JinjaNamespace* space_here = space()) {
    const auto found = space_here->find(name);
    return found == space_here->end() ? nullptr : &found->second;
  }
  if (const JinjaMembers* dict = members()) {
    for (const auto& [key, value] : *dict) {
      if (key == name) return &value;
    }
  }
  return nullptr;
}

bool jinja_equal(const JinjaValue& a, const JinjaValue& b) {
  if (a.is_number() && b.is_number()) {
    return a.is_float() || b.is_float() ? a.to_double() == b.to_double() : a.to_int() == b.to_int();
  }
  if (a.text() != nullptr && b.text() != nullptr) return *a.text() == *b.text();
  if (a.items() != nullptr && b.items() != nullptr) {
    return a.items() == b.items() ||
           std::equal(a.items()->begin(), a.items()->end(), b.items()->begin(), b.items()->end(), jinja_equal);
  }
  if (a.members() != nullptr && b.members() != nullptr) {
    if (a.members()->size() != b.members()->size()) return false;
    return std::all_of(a.members()->begin(), a.members()->end(), [&](const auto& member) {
      const JinjaValue* other = b.member(member.first);
      return other != nullptr && jinja_equal(member.second, *other);
    });
  }
  if (a.space() != nullptr || a.function() != nullptr) return a.space() == b.space() && a.function() == b.function();
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

int jinja_compare(const JinjaValue& a, const JinjaValue& b) {
  if (a.is_undefined()) a.fail_undefined();
  if (b.is_undefined()) b.fail_undefined();
  if (a.is_number() && b.is_number()) {
    if (!a.is_float() && !b.is_float()) return a.to_int() < b.to_int() ? -1 : a.to_int() > b.to_int();
    return a.to_double() < b.to_double() ? -1 : a.to_double() > b.to_double();
  }
  if (a.text() != nullptr && b.text() != nullptr) return a.text()->compare(*b.text());
  if (a.items() != nullptr && b.items() != nullptr) {
    const JinjaItems &x = *a.items(), &y = *b.items();
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      if (!jinja_equal(x[i], y[i])) return jinja_compare(x[i], y[i]);
    }
    return x.size() < y.size() ? -1 : x.size() > y.size();
  }
  throw JinjaFault{fmt::format("{} and {} have no order", a.kind(), b.kind())};
}

bool jinja_contains(const JinjaValue& container, const JinjaValue& item) {
  if (container.is_undefined()) return false;
  if (const std::string* text = container.text()) {
    if (item.text() == nullptr) throw JinjaFault{fmt::format("'in' looks for {} in a text", item.kind())};
    return text->find(*item.text()) != std::string::npos;
  }
  if (container.members() != nullptr) return item.text() != nullptr && container.member(*item.text()) != nullptr;
  const JinjaItems* items = container.items();
  if (items == nullptr) throw JinjaFault{fmt::format("'in' looks into {}", container.kind())};
  return std::any_of(items->begin(), items->end(), [&](const JinjaValue& value) { return jinja_equal(value, item); });
}

JinjaValue jinja_arithmetic(std::string_view operation, const JinjaValue& a, const JinjaValue& b) {
  if (a.is_undefined()) a.fail_undefined();
  if (b.is_undefined()) b.fail_undefined();
  if (a.is_number() && b.is_number()) {
    if (a.is_float() || b.is_float()) return float_arithmetic(operation, a.to_double(), b.to_double());
    return int_arithmetic(operation, a.to_int(), b.to_int());
  }
  if (operation == "+") {
    if (a.text() != nullptr && b.text() != nullptr) return *a.text() + *b.text();
    if (a.items() != nullptr && b.items() != nullptr) {
      JinjaItems items = *a.items();
      items.insert(items.end(), b.items()->begin(), b.items()->end());
      return items;
    }
  }
  const auto repeats = [](const JinjaValue& value) { return value.text() != nullptr || value.items() != nullptr; };
  if (operation == "*" && repeats(a) && (b.is_int() || b.is_bool())) return repeated(a, b.to_int());
  if (operation == "*" && repeats(b) && (a.is_int() || a.is_bool())) return repeated(b, a.to_int());
  throw JinjaFault{fmt::format("'{}' cannot join {} and {}", operation, a.kind(), b.kind())};
}

JinjaValue jinja_item(const JinjaValue& value, const JinjaValue& index) {
  if (value.is_undefined()) value.fail_undefined();
  if (const std::string* name = index.text()) {
    const JinjaValue* member = value.member(*name);
    return member != nullptr ? *member : JinjaValue::undefined(*name);
  }
  const bool has_places = value.items() != nullptr || value.text() != nullptr;
  if (!has_places || !(index.is_int() || index.is_bool())) {
    return JinjaValue::undefined(fmt::format("{}[{}]", value.kind(), index.to_repr()));
  }
  const int64_t length = value.length();
  const int64_t place = index.to_int() < 0 ? index.to_int() + length : index.to_int();
  if (place < 0 || place >= length) return JinjaValue::undefined(fmt::format("item {} of a list", index.to_int()));
  if (value.items() != nullptr) return (*value.items())[static_cast<size_t>(place)];
  return characters_of(*value.text())[static_cast<size_t>(place)];
}

JinjaValue jinja_slice(const JinjaValue& value, const JinjaValue& begin, const JinjaValue& end,
                       const JinjaValue& step) {
  if (value.is_undefined()) value.fail_undefined();
  if (const JinjaItems* items = value.items()) {
    JinjaItems out;
    for (const size_t i : sliced_places(value.length(), begin, end, step)) out.push_back((*items)[i]);
    return out;
  }
  if (value.text() == nullptr) throw JinjaFault{fmt::format("a slice of {}", value.kind())};
  const std::vector<std::string_view> characters = characters_of(*value.text());
  std::string out;
  for (const size_t i : sliced_places(static_cast<int64_t>(characters.size()), begin, end, step)) out += characters[i];
  return out;
}

std::string jinja_to_json(const JinjaValue& value, int64_t indent) {
  if (indent > 64) throw JinjaFault{"tojson with an indent above 64"};
  std::string out;
  write_json(value, indent, 0, out);
  return out;
}

}  // namespace megalith
