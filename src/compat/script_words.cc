// See script_words.h.
#include "compat/script_words.h"

#include <fmt/format.h>

#include "core/error.h"
#include "core/strings.h"

namespace megalith {
namespace {

constexpr std::string_view kSpelling = "spelling of ", kInput = "input:";

}  // namespace

void ScriptWords::apply(std::string_view part) {
  static const WordRules rules("script_rules");
  rules.apply(part, *this);
}

void ScriptWords::check_paths(const std::string& said, const std::string& paths, const LaunchInputs& inputs,
                              const std::string& remedy) {
  for (const std::string& path : split_words(paths)) {
    const bool is_weight = path.find_first_not_of("0123456789.") == std::string::npos;
    if (is_weight || inputs.exists(path + ".idx") || inputs.exists(path)) continue;
    fail(fmt::format("{}: there is no {}.idx", said, path), remedy);
  }
}

std::string ScriptWords::said(std::string_view name) const {
  const ScriptValue* value = values_.find(sayer(name));
  MEGALITH_CHECK(value != nullptr, "{} has no value to show", name);
  return value->text();
}

void ScriptWords::set(std::string_view word, std::string option, std::string value) {
  const std::string_view name = sayer(word);
  const ScriptValue* from = names_defaults_ ? values_.find(name) : values_.given(name);
  PlannedOption planned{std::move(option), std::move(value), from ? from->spelling : "", from ? from->value : ""};
  if (from == nullptr && names_defaults_) {
    planned.variable = name;
    planned.given = text(word);
  }
  if (!planned.name.starts_with(kInput)) return plan_.set(std::move(planned));
  planned.name.erase(0, kInput.size());
  plan_.inputs.push_back(std::move(planned));
}

void ScriptWords::refuse(std::string_view word, std::string_view expected, std::string /*remedy*/) const {
  throw InternalError(fmt::format("a rule asks {} for {}, which scripts.table should", word, expected));
}

std::optional<std::string> ScriptWords::value_of(std::string_view name) const {
  if (name.starts_with(kSpelling)) return std::string(values_.find(name.substr(kSpelling.size()))->spelling);
  const ScriptValue* value = values_.find(name);
  return value == nullptr ? std::nullopt : std::optional(value->value);
}

}  // namespace megalith
