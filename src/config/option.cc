// Options and sets of options; see option.h.
#include "config/option.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "core/strings.h"

namespace megalith {
namespace {

template <typename... Cases>
struct Overload : Cases... {
  using Cases::operator()...;
};

template <typename T>
constexpr bool kIsVector = false;
template <typename T>
constexpr bool kIsVector<std::vector<T>> = true;
template <typename T>
constexpr bool kIsOptional = false;
template <typename T>
constexpr bool kIsOptional<std::optional<T>> = true;

std::string yaml_text(bool value) { return value ? "true" : "false"; }
std::string yaml_text(int64_t value) { return fmt::format("{}", value); }
std::string yaml_text(double value) { return number_text(value); }
std::string yaml_text(const std::string& value) { return yaml_scalar(value); }

template <typename T>
std::string yaml_text(const std::optional<T>& value) {
  return value ? yaml_text(*value) : "null";
}

template <typename T>
std::string yaml_text(const std::vector<T>& values) {
  std::vector<std::string> items;
  for (const T& value : values) items.push_back(yaml_text(value));
  return "[" + join(items, ", ") + "]";
}

}  // namespace

Option::Option(std::string name, std::string group, std::string help, Variable variable, const OptionTraits& traits)
    : name_(std::move(name)),
      group_(std::move(group)),
      help_(std::move(help)),
      traits_(traits),
      variable_(std::move(variable)) {
  default_ = current();
  default_text_ = text();
}

Option& Option::unit(std::string_view unit) {
  unit_ = unit;
  return *this;
}
Option& Option::at_least(double bound) {
  at_least_ = bound;
  return *this;
}
Option& Option::at_most(double bound) {
  at_most_ = bound;
  return *this;
}
Option& Option::above(double bound) {
  above_ = bound;
  return *this;
}
Option& Option::below(double bound) {
  below_ = bound;
  return *this;
}
Option& Option::alias(std::string_view other_name) {
  aliases_.emplace_back(other_name);
  return *this;
}
Option& Option::opposite(std::string_view name) {
  MEGALITH_CHECK(is_switch(), "option '{}' has the opposite '{}' and is no boolean", name_, name);
  opposites_.emplace_back(name);
  return *this;
}
Option& Option::words(std::vector<std::string> allowed) {
  words_ = std::move(allowed);
  return *this;
}
Option& Option::changes_weights(bool does) {
  traits_.changes_weights = does;
  return *this;
}
Option& Option::changes_numbers(bool does) {
  traits_.changes_numbers = does;
  return *this;
}
Option& Option::in_toy(InToy what) {
  traits_.in_toy = what;
  return *this;
}

Option& Option::by_rank(ByRank what) {
  traits_.by_rank = what;
  return *this;
}
Option& Option::toy(std::string_view text) {
  traits_.in_toy = InToy::kMade;
  toy_ = text;
  return *this;
}
Option& Option::read_by(ModelTypes types) {
  traits_.read_by = types;
  return *this;
}
Option& Option::acts_in(RunCommands commands) {
  traits_.acts_in = commands;
  return *this;
}
Option& Option::always(ModelTypes types, std::string_view text) {
  traits_.read_by = traits_.read_by - types;
  always_.emplace_back(types, text);
  return *this;
}

void Option::assign(const WrittenValue& written, const OptionSource& source) {
  store(parse(written, source));
  source_ = source;
  history_.emplace_back(source, text());
}

bool Option::offer(const WrittenValue& written, const OptionSource& source) {
  if (source.layer >= source_.layer) {
    assign(written, source);
    return true;
  }
  const Value kept = current();
  store(parse(written, source));
  history_.emplace_back(source, text());
  store(kept);
  return false;
}

void Option::reset(const OptionSource& source) {
  store(default_);
  source_ = source;
  history_.emplace_back(source, text());
}

void Option::take_toy() {
  if (toy_ && !is_off()) store(parse(WrittenValue::of(*toy_), source_));
}

const void* Option::variable() const {
  return std::visit(Overload{[](const Choice& choice) { return choice.variable; },
                             [](const auto* bound) { return static_cast<const void*>(bound); }},
                    variable_);
}

bool Option::is_off() const {
  const std::string value = text();
  return value == "null" || value == "0";
}

bool Option::is_switch() const {
  return std::holds_alternative<bool*>(variable_) || std::holds_alternative<std::optional<bool>*>(variable_);
}

bool Option::is_list() const {
  return std::visit([]<typename T>(const T&) { return kIsVector<std::remove_pointer_t<T>>; }, variable_);
}

bool Option::is_optional() const {
  return std::visit([]<typename T>(const T&) { return kIsOptional<std::remove_pointer_t<T>>; }, variable_);
}

Option::Value Option::current() const {
  return std::visit(Overload{[](const Choice& choice) { return Value(choice.get()); },
                             [](const auto* bound) { return Value(*bound); }},
                    variable_);
}

void Option::store(const Value& value) {
  std::visit(Overload{[&](const Choice& choice) { choice.set(std::get<size_t>(value)); },
                      [&](auto* bound) { *bound = std::get<std::decay_t<decltype(*bound)>>(value); }},
             variable_);
}

std::string Option::text() const {
  return std::visit(Overload{[](const Choice& choice) { return choice.words.at(choice.get()); },
                             [](const auto* bound) { return yaml_text(*bound); }},
                    variable_);
}

std::vector<std::string> Option::words_of_value() const {
  using Words = std::vector<std::string>;
  return std::visit(
      Overload{[](std::vector<std::string>* bound) { return *bound; }, [](std::string* bound) { return Words{*bound}; },
               [](std::optional<std::string>* bound) { return *bound ? Words{**bound} : Words{}; },
               [this](const auto&) { return Words{text()}; }},
      variable_);
}

const std::vector<std::string>& Option::allowed_words() const {
  const Choice* choice = std::get_if<Choice>(&variable_);
  return choice ? choice->words : words_;
}

std::string Option::type_text() const {
  const std::string words = join(allowed_words(), ", ");
  return std::visit(
      Overload{[&](const Choice&) { return "one of " + words; },
               [](const bool*) -> std::string { return "true or false"; },
               [](const std::optional<bool>*) -> std::string { return "true or false"; },
               [](const int64_t*) -> std::string { return "integer"; },
               [](const std::optional<int64_t>*) -> std::string { return "integer"; },
               [](const double*) -> std::string { return "number"; },
               [](const std::optional<double>*) -> std::string { return "number"; },
               [](const std::vector<int64_t>*) -> std::string { return "list of integers"; },
               [](const std::vector<double>*) -> std::string { return "list of numbers"; },
               [&](const std::string*) { return words.empty() ? "text" : "one of " + words; },
               [&](const std::optional<std::string>*) { return words.empty() ? "text" : "one of " + words; },
               [&](const std::vector<std::string>*) { return words.empty() ? "list of texts" : "list of " + words; }},
      variable_);
}

std::string Option::range_text() const {
  std::vector<std::string> bounds;
  if (at_least_) bounds.push_back(fmt::format("at least {}", number_text(*at_least_)));
  if (above_) bounds.push_back(fmt::format("above {}", number_text(*above_)));
  if (at_most_) bounds.push_back(fmt::format("at most {}", number_text(*at_most_)));
  if (below_) bounds.push_back(fmt::format("below {}", number_text(*below_)));
  return join(bounds, " and ");
}

std::string Option::named_at(const OptionSource& source) const {
  return source.layer == OptionLayer::kCommandLine ? "--" + name_ : source.where + ": " + name_;
}

bool Option::in_range(double value) const {
  return (!at_least_ || value >= *at_least_) && (!at_most_ || value <= *at_most_) && (!above_ || value > *above_) &&
         (!below_ || value < *below_);
}

namespace {

std::vector<double> numbers_in(const Option::Value& value) {
  return std::visit(
      Overload{
          [](const auto&) { return std::vector<double>{}; },
          [](int64_t number) { return std::vector{static_cast<double>(number)}; },
          [](double number) { return std::vector{number}; },
          [](const std::optional<int64_t>& number) {
            return number ? std::vector{static_cast<double>(*number)} : std::vector<double>{};
          },
          [](const std::optional<double>& number) { return number ? std::vector{*number} : std::vector<double>{}; },
          [](const std::vector<int64_t>& all) { return std::vector<double>(all.begin(), all.end()); },
          [](const std::vector<double>& all) { return all; }},
      value);
}

}  // namespace

bool Option::is_in_range() const {
  return std::ranges::all_of(numbers_in(current()), [&](double number) { return in_range(number); });
}

bool Option::is_above_range() const {
  return at_most_ && std::ranges::any_of(numbers_in(current()), [&](double number) { return number > *at_most_; });
}

const std::string* Option::text_always(ModelType type) const {
  for (const auto& [types, text] : always_) {
    if (types.contains(type)) return &text;
  }
  return nullptr;
}

void Option::refuse(const std::string& text, const OptionSource& source, const std::string& hint) const {
  std::string accepted = type_text();
  if (!range_text().empty()) accepted += " " + range_text();
  if (is_optional()) accepted += ", or null";
  const std::string meaning = unit_.empty() ? help_ : fmt::format("{} Unit: {}.", help_, unit_);
  // Whole files end up here by mistake; the message stays a line.
  constexpr size_t kLongestShown = 100;
  const std::string shown = text.size() > kLongestShown ? text.substr(0, kLongestShown) + "…" : text;
  throw UserError(fmt::format("{} is '{}', but takes: {}", named_at(source), shown, accepted),
                  hint.empty() ? fmt::format("{}: {}", name_, meaning) : hint);
}

std::string Option::canonical_word(const std::string& text, const OptionSource& source) const {
  const std::vector<std::string>& words = allowed_words();
  const auto same = [&](const std::string& word) {
    return lower_case(fold_name(word)) == lower_case(fold_name(trim(text)));
  };
  if (std::find(words.begin(), words.end(), text) != words.end()) return text;
  const auto found = std::find_if(words.begin(), words.end(), same);
  if (found != words.end()) return *found;
  const std::string nearest = nearest_word(text, words);
  refuse(text, source, nearest.empty() ? "" : fmt::format("did you mean '{}'?", nearest));
}

// One text as this option's type, or as an item of its list.
Option::Value Option::parse_scalar(const std::string& text, const OptionSource& source) const {
  const auto integer = [&] {
    const std::optional<int64_t> value = parse_integer(text);
    if (!value || !in_range(static_cast<double>(*value))) refuse(text, source);
    return *value;
  };
  const auto number = [&] {
    const std::optional<double> value = parse_number(text);
    if (!value || !in_range(*value)) refuse(text, source);
    return *value;
  };
  const auto boolean = [&] {
    const std::optional<bool> value = parse_bool(text);
    if (!value) refuse(text, source);
    return *value;
  };
  const auto word = [&] { return allowed_words().empty() ? text : canonical_word(text, source); };
  return std::visit(
      Overload{[&](const Choice& choice) -> Value {
                 const std::string found = canonical_word(text, source);
                 return static_cast<size_t>(std::find(choice.words.begin(), choice.words.end(), found) -
                                            choice.words.begin());
               },
               [&](const bool*) -> Value { return boolean(); }, [&](const int64_t*) -> Value { return integer(); },
               [&](const double*) -> Value { return number(); }, [&](const std::string*) -> Value { return word(); },
               [&](const std::optional<bool>*) -> Value { return std::optional<bool>(boolean()); },
               [&](const std::optional<int64_t>*) -> Value { return std::optional<int64_t>(integer()); },
               [&](const std::optional<double>*) -> Value { return std::optional<double>(number()); },
               [&](const std::optional<std::string>*) -> Value { return std::optional<std::string>(word()); },
               [&](const std::vector<int64_t>*) -> Value { return integer(); },
               [&](const std::vector<double>*) -> Value { return number(); },
               [&](const std::vector<std::string>*) -> Value { return word(); }},
      variable_);
}

Option::Value Option::parse(const WrittenValue& written, const OptionSource& source) const {
  using Form = WrittenValue::Form;
  const auto unset = [&] {
    return std::visit(Overload{[&](const Choice&) { return default_; },
                               [&]<typename T>(const T*) -> Value {
                                 if constexpr (kIsOptional<T>) return T();
                                 return default_;
                               }},
                      variable_);
  };
  if (written.form == Form::kNull) return unset();
  const std::string text = written.text();
  const bool is_text = written.form == Form::kText;
  const bool is_own_word = [&] {
    const std::vector<std::string>& words = allowed_words();
    return std::find(words.begin(), words.end(), text) != words.end();
  }();
  if (is_text && !is_own_word) {
    // On a command line, an unset shell variable. A preset's empty text leaves the default.
    if (source.layer == OptionLayer::kCommandLine && trim(text).empty() && (is_optional() || is_list())) {
      throw UserError(fmt::format("{} is empty", named_at(source)),
                      fmt::format("give it a value, or leave it out; --{}=null takes back what a file set", name_));
    }
    if (is_optional() && is_null_word(text)) return unset();
    if (lower_case(trim(text)) == "null") return unset();
  }

  if (!is_list()) {
    const bool is_string = std::holds_alternative<std::string*>(variable_) ||
                           std::holds_alternative<std::optional<std::string>*>(variable_);
    if (written.form == Form::kList && !is_string) refuse(text, source, "give one value, not a list");
    return parse_scalar(text, source);
  }

  std::vector<std::string> items;
  if (written.form == Form::kList) {
    items = written.items;
  } else {
    std::optional<std::vector<std::string>> split = parse_list(text);
    if (!split) refuse(text, source, "close the bracket or the quote of the list");
    items = std::move(*split);
  }
  return std::visit(
      Overload{[&](const auto*) -> Value { return default_; }, [&](const Choice&) -> Value { return default_; },
               [&]<typename T>(const std::vector<T>*) -> Value {
                 std::vector<T> values;
                 for (const std::string& item : items) {
                   values.push_back(std::get<T>(parse_scalar(item, source)));
                 }
                 return values;
               }},
      variable_);
}

Option& OptionVisitor::add(std::string_view name, Option::Variable variable, std::string_view help) {
  options_.push_back(
      std::make_unique<Option>(std::string(name), group_, std::string(help), std::move(variable), traits_));
  return *options_.back();
}

void OptionSet::index() {
  const auto claim = [this](auto& index, const std::string& name, Option* option) {
    const auto& other = &index == &by_name_ ? by_opposite_ : by_name_;
    const auto [entry, is_new] = index.emplace(fold_name(name), option);
    const auto held = is_new ? other.find(entry->first) : entry;
    MEGALITH_CHECK(is_new && held == other.end(), "option name '{}' is declared by '{}' and by '{}'", name,
                   held->second->name(), option->name());
  };
  for (const std::unique_ptr<Option>& option : options_) {
    by_variable_.emplace(option->variable(), option.get());
    claim(by_name_, option->name(), option.get());
    for (const std::string& alias : option->aliases()) claim(by_name_, alias, option.get());
    for (const std::string& opposite : option->opposites()) claim(by_opposite_, opposite, option.get());
  }
}

Option* OptionSet::find(std::string_view name) const {
  const auto found = name.find('-') != name.npos ? by_name_.find(fold_name(name)) : by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

Option& OptionSet::bound_to(const void* variable) const {
  const auto found = by_variable_.find(variable);
  MEGALITH_CHECK(found != by_variable_.end(), "a variable of another struct than those of these options");
  return *found->second;
}

Option* OptionSet::find_opposite(std::string_view name) const {
  const auto found = by_opposite_.find(fold_name(name));
  return found == by_opposite_.end() ? nullptr : found->second;
}

std::string OptionSet::nearest(std::string_view name) const {
  std::vector<std::string> names;
  for (const auto& [known, option] : by_name_) names.push_back(known);
  for (const auto& [known, option] : by_opposite_) names.push_back(known);
  return nearest_word(name, names);
}

}  // namespace megalith
