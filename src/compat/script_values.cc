#include "compat/script_values.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "core/strings.h"

namespace megalith {
namespace {

// Variables of one layer, by spelling.
using Layer = std::map<std::string, std::string>;

bool is_name(std::string_view text) {
  const auto is_letter = [](char c) { return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_'; };
  return !text.empty() && is_letter(text[0]) &&
         std::all_of(text.begin(), text.end(), [&](char c) { return is_letter(c) || (c >= '0' && c <= '9'); });
}

bool is_upper_case(std::string_view text) {
  return std::none_of(text.begin(), text.end(), [](char c) { return c >= 'a' && c <= 'z'; });
}

std::optional<std::string> as_switch(const std::string& text) {
  const std::string lower = lower_case(text);
  if (lower == "1" || lower == "true") return "1";
  if (lower == "0" || lower == "false") return "0";
  return std::nullopt;
}

std::optional<double> as_number(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !std::isfinite(value)) return std::nullopt;
  return value;
}

// Throws UserError.
std::string canonical_value(const ScriptVariable& row, const std::string& spelling, const std::string& text) {
  const auto refuse = [&](const std::string& expected) {
    throw UserError(fmt::format("{} is not {}", said_as(spelling, text), expected), std::string(row.help));
  };
  switch (row.type) {
    case VariableType::kSwitch:
      if (const auto value = as_switch(text)) return *value;
      refuse("a switch: write 0 or 1, false or true");
      break;
    case VariableType::kCount: {
      const auto value = as_number(text);
      if (value && *value == std::floor(*value) && *value >= row.least && *value <= row.most) {
        return fmt::format("{:.0f}", *value);
      }
      const bool is_bounded = row.most < ScriptVariable{}.most;
      refuse(fmt::format("a whole number of at least {}{}", row.least,
                         is_bounded ? fmt::format(" and at most {}", row.most) : ""));
      break;
    }
    case VariableType::kNumber:
      if (as_number(text)) return text;
      refuse("a number");
      break;
    case VariableType::kWord: {
      const std::string lower = lower_case(text);
      for (const std::string_view word : row.words) {
        if (lower == lower_case(word)) return std::string(word);
      }
      refuse(fmt::format("one of {}", fmt::join(row.words, ", ")));
      break;
    }
    case VariableType::kText:
      break;
  }
  return text;
}

// All names of a front end, for suggesting the nearest.
std::vector<std::string> spellings_in(FrontEnd front_end) {
  std::vector<std::string> names;
  for (const ScriptVariable* row : variables_of(front_end)) {
    for (const std::string_view one : row->spellings) names.emplace_back(one);
  }
  return names;
}

UserError unknown_variable(const std::string& name, FrontEnd front_end) {
  const FrontEndRow& row = row_of(front_end);
  if (const ScriptVariable* elsewhere = find_script_variable(name)) {
    return UserError(
        fmt::format("{} is a variable of {}; {} has no use for it", name, owners_of(elsewhere->front_ends), row.name),
        elsewhere->option.empty() ? "leave it out" : fmt::format("type --{} instead", elsewhere->option));
  }
  const std::string nearest = nearest_word(name, spellings_in(front_end));
  return UserError(
      fmt::format("unknown variable {}.{}", name, nearest.empty() ? "" : fmt::format(" Did you mean {}?", nearest)),
      fmt::format("megalith launch {} --help lists the variables", row.name));
}

// A layer's value of a variable; nothing if unset or empty, as in ${TP:-8}.
std::optional<ScriptValue> value_in(const Layer& layer, const ScriptVariable& row, std::vector<UserError>& errors) {
  std::optional<ScriptValue> found;
  for (const std::string_view spelling : row.spellings) {
    const auto at = layer.find(std::string(spelling));
    if (at == layer.end() || trim(at->second).empty()) continue;
    try {
      ScriptValue value{&row, at->first, canonical_value(row, at->first, std::string(trim(at->second)))};
      if (found && found->value != value.value) {
        errors.emplace_back(fmt::format("{} and {} disagree: both are the same variable", found->text(), value.text()),
                            "keep one of them");
        continue;
      }
      if (!found) found = std::move(value);
    } catch (const UserError& error) {
      errors.push_back(error);
    }
  }
  return found;
}

}  // namespace

std::map<std::string, std::string> read_env_file(std::string_view text, std::vector<UserError>& errors) {
  std::map<std::string, std::string> variables;
  int number = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = trim(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (line.starts_with("export ")) line = trim(line.substr(sizeof("export")));
    if (line.empty() || line[0] == '#') continue;
    const size_t equals = line.find('=');
    if (equals == std::string_view::npos || !is_name(line.substr(0, equals))) {
      // Without the line's text, which may be a token.
      errors.emplace_back(fmt::format(".env:{} is no assignment", number), "write NAME=VALUE, or remove the line");
      continue;
    }
    std::string_view value = trim(line.substr(equals + 1));
    const char quote = value.empty() ? ' ' : value[0];
    if ((quote == '"' || quote == '\'') && value.find(quote, 1) != std::string_view::npos) {
      value = value.substr(1, value.find(quote, 1) - 1);
    } else if (const size_t comment = value.find(" #"); comment != std::string_view::npos) {
      value = trim(value.substr(0, comment));
    }
    variables[std::string(line.substr(0, equals))] = std::string(value);
  }
  return variables;
}

ScriptValues::ScriptValues(const LaunchInputs& inputs, std::vector<UserError>& errors) {
  Layer words;
  for (size_t i = 0; i < inputs.words.size(); ++i) {
    const std::string& word = inputs.words[i];
    const ScriptVariable* flag = word.starts_with("-") ? find_script_variable(word) : nullptr;
    if (flag != nullptr && flag->acts_in(inputs.front_end)) {
      if (i + 1 < inputs.words.size()) {
        words[word] = inputs.words[++i];
      } else {
        errors.emplace_back(fmt::format("{} needs a value", word), std::string(flag->help));
      }
      continue;
    }
    const size_t equals = word.find('=');
    const std::string name = word.substr(0, std::min(equals, word.size()));
    const ScriptVariable* row = find_script_variable(name);
    const bool is_variable = equals != std::string::npos && is_name(name) &&
                             (is_upper_case(name) || (row != nullptr && row->acts_in(inputs.front_end)));
    if (!is_variable) {
      options_.push_back(word);
    } else if (row == nullptr || !row->acts_in(inputs.front_end)) {
      errors.push_back(unknown_variable(name, inputs.front_end));
    } else {
      words[name] = word.substr(equals + 1);
    }
  }
  const Layer file = inputs.env_file ? read_env_file(*inputs.env_file, errors) : Layer{};
  for (const ScriptVariable* row : variables_of(inputs.front_end)) {
    std::optional<ScriptValue> value;
    for (const Layer* layer : std::initializer_list<const Layer*>{&words, &inputs.environment, &file}) {
      const size_t num_errors = errors.size();
      if (!value) value = value_in(*layer, *row, errors);
      if (errors.size() > num_errors) break;  // an invalid value: no fallback to lower layers
    }
    if (!value) {
      if (const auto fallback = row->default_of(inputs.front_end)) {
        value = ScriptValue{row, std::string(row->name()), std::string(*fallback), /*is_default=*/true};
      }
    }
    if (value) values_.push_back(std::move(*value));
  }
  for (const auto& [name, value] : file) {
    const bool is_set = inputs.environment.contains(name);
    if (!is_set && find_script_variable(name) == nullptr) other_exports_[name] = value;
  }
}

const ScriptValue* ScriptValues::find(std::string_view name) const {
  const auto found = std::find_if(values_.begin(), values_.end(),
                                  [&](const ScriptValue& one) { return one.variable->name() == name; });
  return found == values_.end() ? nullptr : &*found;
}

const ScriptValue* ScriptValues::given(std::string_view name) const {
  const ScriptValue* value = find(name);
  return value == nullptr || value->is_default ? nullptr : value;
}

bool ScriptValues::is_on(std::string_view name) const {
  const ScriptValue* value = find(name);
  return value != nullptr && value->value == "1";
}

int ScriptValues::count(std::string_view name) const {
  const ScriptValue* value = find(name);
  MEGALITH_CHECK(value != nullptr, "{} has no default", name);
  return std::atoi(value->value.c_str());
}

std::string ScriptValues::text(std::string_view name) const {
  const ScriptValue* value = find(name);
  return value == nullptr ? "" : value->value;
}

}  // namespace megalith
