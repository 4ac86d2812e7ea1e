#include "tokenizer/jinja_value.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
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

// A list or text repeated `times` times.
JinjaValue repeated(const JinjaValue& value, int64_t times, JinjaBudget& budget) {
  const auto count = static_cast<size_t>(std::max<int64_t>(times, 0));
  if (const std::string* text = value.text()) {
    JinjaWriter out(budget);
    out.repeat(*text, count);
    return out.take();
  }
  const JinjaItems& items = *value.items();
  if (!items.empty() && count > kMostJinjaItems / items.size()) throw JinjaFault{"a list longer than is allowed"};
  JinjaListMaker out(&budget);
  for (size_t i = 0; i < count && !items.empty(); ++i) out.add_items(items);
  return out.take();
}

// Offset of the character `count` characters after the one at `begin`.
size_t skip_characters(std::string_view text, size_t begin, int64_t count, JinjaBudget& budget) {
  size_t at = begin;
  for (; count > 0 && at < text.size(); --count) at += utf8_length(text[at]);
  budget.work(at - begin, 2);
  return at;
}

// The indices selected by a slice of `length` items, as in Python's slice.indices().
struct SlicedPlaces {
  int64_t first = 0, step = 1, count = 0;
};

SlicedPlaces sliced_places(int64_t length, const JinjaValue& begin, const JinjaValue& end,
                           const JinjaValue& step_value) {
  const int64_t given = step_value.is_none() ? 1 : step_value.to_int();
  if (given == 0) throw JinjaFault{"a slice with step 0"};
  const int64_t step = std::clamp(given, -length - 1, length + 1);  // larger steps also take at most one item
  const int64_t least = step < 0 ? -1 : 0, most = step < 0 ? length - 1 : length;
  const auto place = [&](const JinjaValue& value, int64_t otherwise) {
    if (value.is_none()) return otherwise;
    const int64_t at = value.to_int();
    return std::clamp(at < 0 ? std::max(at, -length - 1) + length : std::min(at, length), least, most);
  };
  const int64_t first = place(begin, step < 0 ? most : least), last = place(end, step < 0 ? least : most);
  const int64_t distance = step > 0 ? last - first : first - last;
  return {first, step, distance <= 0 ? 0 : (distance - 1) / std::abs(step) + 1};
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

JinjaValue::JinjaValue(std::string_view text, JinjaBudget* budget) {
  if (text.size() > kMostJinjaBytes) throw JinjaFault{fmt::format("a text of more than {} bytes", kMostJinjaBytes)};
  JinjaHeld held(budget, sizeof(Text) + text.size());
  value_ = std::make_shared<const Text>(std::string(text), std::move(held));
}

JinjaValue::JinjaValue(JinjaFunction function, JinjaBudget* budget) {
  constexpr size_t kBound = 64;  // the bound value
  JinjaHeld held(budget, sizeof(Function) + kBound);
  value_ = std::make_shared<const Function>(std::move(function), std::move(held));
}

JinjaValue::JinjaValue(JinjaMembers members, JinjaBudget* budget) {
  auto dict = std::make_shared<Dict>();
  dict->held = JinjaHeld(budget);
  std::map<std::string_view, size_t> places;
  std::vector<size_t> kept;
  for (size_t i = 0; i < members.size(); ++i) {
    dict->held.add(kJinjaMemberBytes + members[i].first.size());
    const auto [place, is_new] = places.emplace(members[i].first, kept.size());
    if (is_new) {
      kept.push_back(i);
    } else {
      members[kept[place->second]].second = members[i].second;
    }
  }
  for (const size_t i : kept) {
    measure_jinja(*dict, members[i].second);
    dict->members.push_back(std::move(members[i]));
  }
  value_ = std::shared_ptr<const Dict>(std::move(dict));
}

JinjaValue JinjaValue::undefined(std::string_view name) {
  constexpr size_t kMostNameBytes = 80;  // may be a text made by the template
  if (name.size() > kMostNameBytes) name = "a value of a long name";
  JinjaValue value;
  value.value_ = Undefined{std::string(name)};
  return value;
}

JinjaValue JinjaValue::from_json(const OrderedJson& json) {
  if (json.is_object()) {
    JinjaMembers members;
    for (const auto& [key, value] : json.items()) members.emplace_back(key, from_json(value));
    return {std::move(members), nullptr};
  }
  if (json.is_array()) {
    JinjaListMaker items(nullptr);
    for (const OrderedJson& value : json) items.add(from_json(value));
    return items.take();
  }
  if (json.is_null()) return nullptr;
  const Json scalar(json);
  if (scalar.is_boolean()) return json_as<bool>(scalar, "a value");
  if (const std::string* text = try_text(scalar)) return {*text, nullptr};
  if (!scalar.is_number_float()) {
    if (const std::optional<int64_t> whole = try_whole_number(scalar)) return *whole;
  }
  return json_as<double>(scalar, "a value");
}

const std::string* JinjaValue::text() const {
  const auto* text = std::get_if<std::shared_ptr<const Text>>(&value_);
  return text == nullptr ? nullptr : &(*text)->text;
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
  const auto* function = std::get_if<std::shared_ptr<const Function>>(&value_);
  return function == nullptr ? nullptr : &(*function)->function;
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

JinjaValue JinjaValue::to_items(JinjaBudget& budget) const {
  if (items() != nullptr) return *this;
  JinjaListMaker out(&budget);
  if (is_undefined()) return out.take();
  if (const JinjaMembers* dict = members()) {
    for (const auto& [key, value] : *dict) out.add_text(key);
    return out.take();
  }
  if (const std::string* t = text()) {
    if (t->size() > kMostJinjaItems) throw JinjaFault{"a text that is too long to go through its characters"};
    for (size_t i = 0; i < t->size(); i += utf8_length((*t)[i])) {
      out.add_text(std::string_view(*t).substr(i, utf8_length((*t)[i])));
    }
    return out.take();
  }
  throw JinjaFault{fmt::format("{} cannot be gone through", kind())};
}

int64_t JinjaValue::length(JinjaBudget& budget) const {
  if (is_undefined()) return 0;
  if (const JinjaItems* list = items()) return static_cast<int64_t>(list->size());
  if (const JinjaMembers* dict = members()) return static_cast<int64_t>(dict->size());
  const std::string* t = text();
  if (t == nullptr) throw JinjaFault{fmt::format("{} has no length", kind())};
  budget.work(t->size(), 2);
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

const JinjaValue* JinjaValue::member(std::string_view name, JinjaBudget& budget) const {
  if (const JinjaNamespace* space_here = space()) {
    budget.work(name.size());
    const auto found = space_here->find(name);
    return found == space_here->end() ? nullptr : &found->second;
  }
  if (const JinjaMembers* dict = members()) {
    for (const auto& [key, value] : *dict) {
      budget.work(1 + (key.size() == name.size() ? name.size() / 4 : 0), 2);
      if (key == name) return &value;
    }
  }
  return nullptr;
}

void JinjaWriter::make_room(size_t count, size_t size) {
  if (size > 0 && count > (kMostJinjaBytes - text_.size()) / size) {
    throw JinjaFault{fmt::format("a text of more than {} bytes", kMostJinjaBytes)};
  }
  const size_t needed = text_.size() + count * size;
  budget().work(5 + count * size / 4);
  if (needed <= text_.capacity()) return;
  const size_t capacity = std::max(needed, 2 * text_.capacity());
  JinjaHeld held(held_.budget(), capacity);
  text_.reserve(capacity);
  held_ = std::move(held);
}

void JinjaWriter::add(std::string_view part) {
  make_room(1, part.size());
  text_ += part;
}

void JinjaWriter::repeat(std::string_view part, size_t count) {
  make_room(count, part.size());
  const size_t begin = text_.size(), end = begin + count * part.size();
  if (begin < end) text_ += part;
  while (text_.size() < end) text_.append(text_, begin, std::min(text_.size() - begin, end - text_.size()));
}

JinjaValue JinjaWriter::take() {
  JinjaValue value;
  held_.add(sizeof(JinjaValue::Text));
  value.value_ = std::make_shared<const JinjaValue::Text>(std::move(text_), std::move(held_));
  return value;
}

JinjaListMaker::JinjaListMaker(JinjaBudget* budget) : list_(std::make_shared<JinjaValue::List>()) {
  list_->held = JinjaHeld(budget, sizeof(JinjaValue::List));
}

void JinjaListMaker::add(JinjaValue value) {
  constexpr size_t kNameBytes = 100;
  constexpr int64_t kAdding = 30;  // units
  if (JinjaBudget* const budget = list_->held.budget()) {
    budget->work(1, kAdding);
    if (value.is_undefined()) list_->held.add(kNameBytes);
  }
  measure_jinja(*list_, value);
  JinjaItems& items = list_->items;
  if (items.size() == items.capacity()) {
    const size_t capacity = std::max<size_t>(4, 2 * items.capacity());
    list_->held.add((capacity - items.size()) * sizeof(JinjaValue));
    items.reserve(capacity);
  }
  items.push_back(std::move(value));
}

void JinjaListMaker::add_items(const JinjaItems& items) {
  for (const JinjaValue& item : items) add(item);
}

JinjaValue JinjaListMaker::take() {
  JinjaValue value;
  value.value_ = std::shared_ptr<const JinjaValue::List>(std::move(list_));
  return value;
}

size_t find_in_text(std::string_view text, std::string_view what, size_t begin, JinjaBudget& budget) {
  if (begin > text.size()) return std::string_view::npos;
  // Not string::find, which is quadratic; glibc's memmem has a linear bound.
  const void* const found = ::memmem(text.data() + begin, text.size() - begin, what.data(), what.size());
  const auto* const place = found == nullptr ? text.data() + text.size() : static_cast<const char*>(found);
  const auto end = static_cast<size_t>(place - text.data());
  constexpr size_t kCall = 30, kComparedAtOnce = 32, kMostCompared = 256;  // above it, compares no place twice
  const size_t compared = what.size() > kMostCompared ? 0 : what.size() / kComparedAtOnce;
  budget.work(kCall + end - begin + what.size(), 2 + static_cast<int64_t>(compared));
  return found == nullptr ? std::string_view::npos : end;
}

bool jinja_equal(const JinjaValue& a, const JinjaValue& b, JinjaBudget& budget) {
  budget.work(1, 20);
  if (a.is_number() && b.is_number()) {
    return a.is_float() || b.is_float() ? a.to_double() == b.to_double() : a.to_int() == b.to_int();
  }
  const auto equal = [&](const JinjaValue& x, const JinjaValue& y) { return jinja_equal(x, y, budget); };
  if (a.text() != nullptr && b.text() != nullptr) {
    if (a.text()->size() != b.text()->size()) return false;
    budget.work(a.text()->size() / 4);
    return *a.text() == *b.text();
  }
  if (a.items() != nullptr && b.items() != nullptr) {
    return a.items() == b.items() ||
           std::equal(a.items()->begin(), a.items()->end(), b.items()->begin(), b.items()->end(), equal);
  }
  if (a.members() != nullptr && b.members() != nullptr) {
    if (a.members()->size() != b.members()->size()) return false;
    return std::all_of(a.members()->begin(), a.members()->end(), [&](const auto& member) {
      const JinjaValue* other = b.member(member.first, budget);
      return other != nullptr && equal(member.second, *other);
    });
  }
  if (a.space() != nullptr || a.function() != nullptr) return a.space() == b.space() && a.function() == b.function();
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

int jinja_compare(const JinjaValue& a, const JinjaValue& b, JinjaBudget& budget) {
  if (a.is_undefined()) a.fail_undefined();
  if (b.is_undefined()) b.fail_undefined();
  if (a.is_number() && b.is_number()) {
    if (!a.is_float() && !b.is_float()) return a.to_int() < b.to_int() ? -1 : a.to_int() > b.to_int();
    return a.to_double() < b.to_double() ? -1 : a.to_double() > b.to_double();
  }
  if (a.text() != nullptr && b.text() != nullptr) {
    budget.work(std::min(a.text()->size(), b.text()->size()) / 4);
    return a.text()->compare(*b.text());
  }
  if (a.items() != nullptr && b.items() != nullptr) {
    const JinjaItems &x = *a.items(), &y = *b.items();
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      if (!jinja_equal(x[i], y[i], budget)) return jinja_compare(x[i], y[i], budget);
    }
    return x.size() < y.size() ? -1 : x.size() > y.size();
  }
  throw JinjaFault{fmt::format("{} and {} have no order", a.kind(), b.kind())};
}

bool jinja_contains(const JinjaValue& container, const JinjaValue& item, JinjaBudget& budget) {
  if (container.is_undefined()) return false;
  if (const std::string* text = container.text()) {
    if (item.text() == nullptr) throw JinjaFault{fmt::format("'in' looks for {} in a text", item.kind())};
    return find_in_text(*text, *item.text(), 0, budget) != std::string::npos;
  }
  if (container.members() != nullptr) {
    return item.text() != nullptr && container.member(*item.text(), budget) != nullptr;
  }
  const JinjaItems* items = container.items();
  if (items == nullptr) throw JinjaFault{fmt::format("'in' looks into {}", container.kind())};
  return std::any_of(items->begin(), items->end(),
                     [&](const JinjaValue& value) { return jinja_equal(value, item, budget); });
}

JinjaValue jinja_arithmetic(std::string_view operation, const JinjaValue& a, const JinjaValue& b, JinjaBudget& budget) {
  if (a.is_undefined()) a.fail_undefined();
  if (b.is_undefined()) b.fail_undefined();
  if (a.is_number() && b.is_number()) {
    if (a.is_float() || b.is_float()) return float_arithmetic(operation, a.to_double(), b.to_double());
    return int_arithmetic(operation, a.to_int(), b.to_int());
  }
  if (operation == "+") {
    if (a.text() != nullptr && b.text() != nullptr) {
      JinjaWriter out(budget);
      out.add(*a.text());
      out.add(*b.text());
      return out.take();
    }
    if (a.items() != nullptr && b.items() != nullptr) {
      JinjaListMaker out(&budget);
      out.add_items(*a.items());
      out.add_items(*b.items());
      return out.take();
    }
  }
  const auto repeats = [](const JinjaValue& value) { return value.text() != nullptr || value.items() != nullptr; };
  if (operation == "*" && repeats(a) && (b.is_int() || b.is_bool())) return repeated(a, b.to_int(), budget);
  if (operation == "*" && repeats(b) && (a.is_int() || a.is_bool())) return repeated(b, a.to_int(), budget);
  throw JinjaFault{fmt::format("'{}' cannot join {} and {}", operation, a.kind(), b.kind())};
}

JinjaValue jinja_item(const JinjaValue& value, const JinjaValue& index, JinjaBudget& budget) {
  if (value.is_undefined()) value.fail_undefined();
  if (const std::string* name = index.text()) {
    const JinjaValue* member = value.member(*name, budget);
    return member != nullptr ? *member : JinjaValue::undefined(*name);
  }
  const bool has_places = value.items() != nullptr || value.text() != nullptr;
  if (!has_places || !(index.is_int() || index.is_bool())) {
    return JinjaValue::undefined(fmt::format("{}[{}]", value.kind(), index.kind()));
  }
  const int64_t length = value.length(budget);
  const int64_t place = index.to_int() < 0 ? index.to_int() + length : index.to_int();
  if (place < 0 || place >= length) return JinjaValue::undefined(fmt::format("item {} of a list", index.to_int()));
  if (value.items() != nullptr) return (*value.items())[static_cast<size_t>(place)];
  const std::string_view text = *value.text();
  const size_t begin = skip_characters(text, 0, place, budget);
  return {text.substr(begin, utf8_length(text[begin])), &budget};
}

JinjaValue jinja_slice(const JinjaValue& value, const JinjaValue& begin, const JinjaValue& end, const JinjaValue& step,
                       JinjaBudget& budget) {
  if (value.is_undefined()) value.fail_undefined();
  if (value.items() == nullptr && value.text() == nullptr) throw JinjaFault{fmt::format("a slice of {}", value.kind())};
  const int64_t length = value.length(budget);
  const SlicedPlaces places = sliced_places(length, begin, end, step);
  if (const JinjaItems* items = value.items()) {
    JinjaListMaker out(&budget);
    for (int64_t i = 0; i < places.count; ++i) out.add((*items)[static_cast<size_t>(places.first + i * places.step)]);
    return out.take();
  }
  const std::string_view text = *value.text();
  const bool is_ascii = text.size() == static_cast<size_t>(length);
  if (places.step == 1) {
    const size_t first = skip_characters(text, 0, places.first, budget);
    return {text.substr(first, skip_characters(text, first, places.count, budget) - first), &budget};
  }
  JinjaHeld held(&budget, is_ascii ? 0 : static_cast<size_t>(length) * sizeof(uint32_t));
  std::vector<uint32_t> begins;  // offsets of characters; texts are shorter than 4 GiB
  if (!is_ascii) begins.reserve(static_cast<size_t>(length));
  for (size_t i = 0; i < text.size() && !is_ascii; i += utf8_length(text[i])) {
    begins.push_back(static_cast<uint32_t>(i));
  }
  budget.work(text.size(), 2);
  JinjaWriter out(budget);
  for (int64_t i = 0; i < places.count; ++i) {
    const auto place = static_cast<size_t>(places.first + i * places.step);
    const size_t at = is_ascii ? place : begins[place];
    out.add(text.substr(at, utf8_length(text[at])));
  }
  return out.take();
}

}  // namespace megalith
