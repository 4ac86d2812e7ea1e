#include "compat/variable.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "config/dialect.h"
#include "core/error.h"
#include "core/strings.h"

namespace megalith {
namespace {

ScriptVariable read_variable(const DialectRow& row) {
  const auto [kind, arguments] = split_entry(row.cells[1]);
  const auto [type, bounds] = split_entry(row.cells[2]);
  ScriptVariable variable;
  variable.spellings = split_words(row.cells[0]);
  variable.kind = row.choose<VariableKind>(kind, {{"option", VariableKind::kOption},
                                                  {"options", VariableKind::kOptions},
                                                  {"launching", VariableKind::kLaunching},
                                                  {"logging", VariableKind::kLogging},
                                                  {"exported", VariableKind::kExported},
                                                  {"no_effect", VariableKind::kNoEffect},
                                                  {"refused", VariableKind::kRefused}});
  variable.type = row.choose<VariableType>(type, {{"switch", VariableType::kSwitch},
                                                  {"count", VariableType::kCount},
                                                  {"number", VariableType::kNumber},
                                                  {"word", VariableType::kWord},
                                                  {"secret", VariableType::kText},
                                                  {"text", VariableType::kText}});
  variable.is_secret = type == "secret";
  variable.front_ends = front_ends_called(row, row.cells[3]);
  for (const std::string& entry : split_words(row.cells[4])) {
    const size_t equals = entry.find('=');
    variable.defaults.emplace_back(front_ends_called(row, entry.substr(0, equals)), entry.substr(equals + 1));
  }
  variable.source = row.cells[5];
  variable.help = row.cells[6];
  if (variable.kind == VariableKind::kOption) variable.option = arguments.at(0);
  if (variable.kind == VariableKind::kRefused) variable.neutral = arguments.at(0);
  if (variable.kind == VariableKind::kRefused || variable.kind == VariableKind::kNoEffect) {
    variable.reason = row.cells[7].empty() ? variable.help : row.cells[7];
  }
  variable.typed = row.cells[8];
  if (variable.type == VariableType::kWord) variable.words = bounds;
  if (variable.type == VariableType::kCount) {
    if (!bounds.empty()) variable.least = std::stoi(bounds[0]);
    if (bounds.size() > 1) variable.most = std::stoi(bounds[1]);
  }
  return variable;
}

const std::vector<ScriptVariable>& all_variables() {
  static const std::vector<ScriptVariable> variables = [] {
    std::vector<ScriptVariable> all;
    const auto rows =
        dialect_rows("scripts", {"spellings", "kind", "type", "scripts", "defaults", "source", "help", "reason", "typed"});
    std::transform(rows.begin(), rows.end(), std::back_inserter(all), read_variable);
    return all;
  }();
  return variables;
}

}  // namespace

std::string_view name_of(VariableKind kind) {
  switch (kind) {
    case VariableKind::kOption:
      return "option";
    case VariableKind::kOptions:
      return "options";
    case VariableKind::kLaunching:
      return "launching";
    case VariableKind::kLogging:
      return "logging";
    case VariableKind::kExported:
      return "exported";
    case VariableKind::kNoEffect:
      return "without effect";
    case VariableKind::kRefused:
      return "refused";
  }
  throw InternalError("a kind of variable without a name");
}

std::optional<std::string_view> ScriptVariable::default_of(FrontEnd front_end) const {
  for (const auto& [several, value] : defaults) {
    if (has(several, front_end)) return value;
  }
  return std::nullopt;
}

bool ScriptVariable::acts_in(FrontEnd front_end) const {
  if (has(front_ends, front_end)) return true;
  return has(kRocmScripts, front_end) && (front_ends & kRocmScripts) != 0;
}

std::string said_as(std::string_view spelling, std::string_view value) {
  return fmt::format("{}{}{}", spelling, spelling.starts_with('-') ? " " : "=", value);
}

std::span<const ScriptVariable> script_variables() { return std::span(all_variables()).subspan(script_flags().size()); }

std::span<const ScriptVariable> script_flags() {
  // Flags come first in the table.
  const std::vector<ScriptVariable>& all = all_variables();
  const auto end = std::find_if(all.begin(), all.end(), [](auto& row) { return !row.name().starts_with('-'); });
  return {all.begin(), end};
}

std::vector<const ScriptVariable*> finetuning_variables() {
  std::vector<const ScriptVariable*> rows;
  for (const ScriptVariable& row : all_variables()) {
    if (row.source == "Torchtune_Tester.sh") rows.push_back(&row);
  }
  return rows;
}

const ScriptVariable* find_script_variable(std::string_view spelling) {
  static const std::map<std::string_view, const ScriptVariable*> by_spelling = [] {
    std::map<std::string_view, const ScriptVariable*> index;
    for (const ScriptVariable& row : all_variables()) {
      for (const std::string& one : row.spellings) {
        MEGALITH_CHECK(index.emplace(one, &row).second, "two variables are spelled {}", one);
      }
    }
    return index;
  }();
  const auto found = by_spelling.find(spelling);
  return found == by_spelling.end() ? nullptr : found->second;
}

std::vector<const ScriptVariable*> variables_of(FrontEnd front_end) {
  std::vector<const ScriptVariable*> rows;
  for (const ScriptVariable& row : all_variables()) {
    if (row.acts_in(front_end)) rows.push_back(&row);
  }
  return rows;
}

}  // namespace megalith
