// See variable.h.
#include "compat/variable.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "core/error.h"

namespace megalith {
namespace {

const std::vector<ScriptVariable>& all_variables() {
  static const std::vector<ScriptVariable> rows = [] {
    std::vector<ScriptVariable> all;
    for (auto part : {benchmark_variables, finetuning_variables, model_variables, data_variables, launch_variables,
                      exported_variables}) {
      std::vector<ScriptVariable> some = part();
      std::move(some.begin(), some.end(), std::back_inserter(all));
    }
    return all;
  }();
  return rows;
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
  // They are the table's first part.
  static const size_t count = benchmark_variables().size();
  return std::span(all_variables()).first(count);
}

const ScriptVariable* find_script_variable(std::string_view spelling) {
  static const std::map<std::string_view, const ScriptVariable*> by_spelling = [] {
    std::map<std::string_view, const ScriptVariable*> index;
    for (const ScriptVariable& row : all_variables()) {
      for (const std::string_view one : row.spellings) {
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
