#include "compat/word_rules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "config/option_value.h"
#include "core/error.h"
#include "core/strings.h"

namespace megalith {
namespace {

using Kind = RuleCondition::Kind;
using Outcome = WordRule::Outcome;

RuleCondition read_condition(const DialectRow& row, const std::string& text) {
  if (text[0] == '+' || text[0] == '-') {
    return {text.substr(1), text[0] == '+' ? Kind::kWritten : Kind::kNotWritten, {}};
  }
  const size_t at = text.find_first_of("=!<>");
  MEGALITH_CHECK(at != std::string::npos, "{}: '{}' compares nothing", row.where, text);
  const Kind kind = row.choose<Kind>(
      text.substr(at, text[at] == '!' ? 2 : 1),
      {{"=", Kind::kIs}, {"!=", Kind::kIsNot}, {">", Kind::kAbove}, {"<", Kind::kBelow}});
  auto [name, values] = split_entry(text.substr(0, at) + text.substr(text[at] == '!' ? at + 1 : at));
  if (kind == Kind::kAbove || kind == Kind::kBelow) values = {text.substr(at + 1)}, name = text.substr(0, at);
  if (values.empty()) values = {""};
  return {std::move(name), kind, std::move(values)};
}

// Splits and trims.
std::vector<std::string> split_at(std::string_view text, std::string_view separator) {
  std::vector<std::string> parts;
  for (size_t end = 0; end != std::string_view::npos; text.remove_prefix(end + separator.size())) {
    end = text.find(separator);
    parts.emplace_back(trim(text.substr(0, end)));
    if (end == std::string_view::npos) break;
  }
  return parts;
}

Outcome read_outcome(const DialectRow& row, std::vector<std::string> values, const std::string& text, bool& stops) {
  Outcome outcome{std::move(values), {}, {}};
  std::string options;
  for (const std::string& word : split_words(text)) {
    if (word == "stop") {
      stops = true;
    } else if (word.starts_with('-')) {
      outcome.dropped.push_back(word.substr(1));
    } else {
      options += word + " ";
    }
  }
  outcome.options = option_words(row, options);
  return outcome;
}

WordRule read_rule(const DialectRow& row) {
  WordRule rule;
  rule.where = row.where;
  rule.part = row.cells[0];
  for (const std::string& text : split_words(row.cells[1])) rule.when.push_back(read_condition(row, text));
  rule.word = row.cells[2];
  for (const std::string& text : split_at(row.cells[3], ";")) {
    const size_t colon = (text + " ").find(": ");
    const bool has_values = colon != std::string::npos && text.find('=') > colon;
    std::vector<std::string> values;
    if (has_values) values = split_at(text.substr(0, colon), "|");
    rule.outcomes.push_back(
        read_outcome(row, std::move(values), has_values ? text.substr(colon + 1) : text, rule.stops));
  }
  if (row.cells[4].empty()) return rule;
  const size_t blank = row.cells[4].find(' ');
  rule.says = row.choose<WordRule::Says>(row.cells[4].substr(0, blank), {{"note", WordRule::Says::kNote},
                                                                         {"error", WordRule::Says::kError},
                                                                         {"takes", WordRule::Says::kTakes}});
  const std::vector<std::string> parts = split_at(row.cells[4].substr(blank + 1), "=>");
  rule.text = parts[0];
  if (parts.size() > 1) rule.remedy = parts[1];
  return rule;
}

// Substitutes {}, {NAME} and {said NAME}.
std::string filled_in(std::string_view text, const std::string& word, const std::string& value,
                      const RuleWords& words) {
  std::string result;
  for (size_t end = 0; !text.empty(); text.remove_prefix(end)) {
    const size_t begin = std::min(text.find('{'), text.size());
    result += text.substr(0, begin);
    text.remove_prefix(begin);
    end = std::min(text.find('}'), text.size());
    if (text.empty()) break;
    const std::string_view name = text.substr(1, end - 1);
    end = std::min(end + 1, text.size());
    if (name.empty()) {
      result += value;
    } else if (name == "said") {
      result += words.said(word);
    } else {
      result += name.starts_with("said ") ? words.said(name.substr(5)) : words.text(name);
    }
  }
  return result;
}

bool is_same(const RuleWords& words, const std::string& name, const std::string& value) {
  if (!words.has(name)) return value.empty();
  if (value == "true" || value == "false") return words.is_on(name) == (value == "true");
  if (parse_integer(value)) {
    return value.find('.') == std::string::npos ? words.whole(name) == *parse_integer(value)
                                                : words.number(name) == *parse_number(value);
  }
  const std::string text = words.text(name);
  return value.ends_with('*') ? text.starts_with(value.substr(0, value.size() - 1)) : text == value;
}

bool holds(const RuleCondition& condition, const RuleWords& words) {
  const auto is_one = [&](const std::string& value) { return is_same(words, condition.name, value); };
  switch (condition.kind) {
    case Kind::kIs:
      return std::any_of(condition.values.begin(), condition.values.end(), is_one);
    case Kind::kIsNot:
      return std::none_of(condition.values.begin(), condition.values.end(), is_one);
    case Kind::kAbove:
      return words.has(condition.name) && words.whole(condition.name) > std::stoll(condition.values[0]);
    case Kind::kBelow:
      return words.has(condition.name) && words.whole(condition.name) < std::stoll(condition.values[0]);
    case Kind::kWritten:
      return words.is_written(condition.name);
    case Kind::kNotWritten:
      return !words.is_written(condition.name);
  }
  return false;
}

void become(const Outcome& outcome, const std::string& word, const std::string& value, RuleWords& words) {
  for (const std::string& option : outcome.dropped) words.drop(option);
  for (const auto& [option, text] : outcome.options) {
    std::string filled = filled_in(text, word, value, words);
    option.starts_with('@') ? words.set_fact(option, std::move(filled), word)
                            : words.set(word, option, std::move(filled));
  }
}

void become_by_value(const WordRule& rule, RuleWords& words) {
  for (const std::string& item : words.items(rule.word)) {
    const auto found = std::find_if(rule.outcomes.begin(), rule.outcomes.end(), [&](const Outcome& one) {
      return std::find(one.values.begin(), one.values.end(), item) != one.values.end();
    });
    if (found != rule.outcomes.end()) {
      become(*found, rule.word, item, words);
      continue;
    }
    std::vector<std::string> expected;
    for (const Outcome& one : rule.outcomes) expected.push_back(one.values[0]);
    words.refuse(rule.word, fmt::format("{}{}", fmt::join(expected, ", "), rule.text), rule.remedy);
  }
}

}  // namespace

std::string RuleWords::text(std::string_view name) const {
  const auto fact = facts_.find(name);
  return fact != facts_.end() ? fact->second.value : value_of(name).value_or("");
}

bool RuleWords::has(std::string_view name) const { return !text(name).empty(); }

bool RuleWords::is_on(std::string_view name) const {
  const auto value = parse_bool(text(name));
  if (!value) refuse(name, switch_values());
  return *value;
}

int64_t RuleWords::whole(std::string_view name) const {
  const auto value = parse_integer(text(name));
  if (!value) refuse(name, "a whole number");
  return *value;
}

double RuleWords::number(std::string_view name) const {
  const auto value = parse_number(text(name));
  if (!value) refuse(name, "a number");
  return *value;
}

void RuleWords::set_fact(std::string name, std::string value, std::string by) {
  facts_[std::move(name)] = {std::move(value), std::move(by)};
}

void RuleWords::drop(std::string_view option) { throw InternalError(fmt::format("{} cannot be taken back", option)); }

std::string_view RuleWords::sayer(std::string_view name) const {
  const auto fact = facts_.find(name);
  return fact != facts_.end() ? std::string_view(fact->second.by) : name;
}

WordRules::WordRules(const std::vector<DialectRow>& rows) {
  for (const DialectRow& row : rows) rules_.push_back(read_rule(row));
}

void WordRules::apply(std::string_view part, RuleWords& words) const {
  bool is_there = false;
  for (const WordRule& rule : rules_) {
    if (rule.part != part) continue;
    is_there = true;
    const auto is_met = [&](const RuleCondition& condition) { return holds(condition, words); };
    if (!std::all_of(rule.when.begin(), rule.when.end(), is_met)) continue;
    const bool is_by_value = !rule.outcomes[0].values.empty();
    const std::string value = rule.word.empty() ? "" : words.text(rule.word);
    is_by_value ? become_by_value(rule, words) : become(rule.outcomes[0], rule.word, value, words);
    const auto said = [&](const std::string& text) { return filled_in(text, rule.word, value, words); };
    if (rule.says == WordRule::Says::kNote) words.note(said(rule.text));
    if (rule.says == WordRule::Says::kError) words.fail(said(rule.text), said(rule.remedy));
    if (rule.says == WordRule::Says::kTakes && !is_by_value) words.refuse(rule.word, rule.text, rule.remedy);
    if (rule.stops) return;
  }
  MEGALITH_CHECK(is_there, "no rule is of the part {}", part);
}

}  // namespace megalith
