// A script's variables and flags as rules (word_rules.h) read them; results go into the plan.
#pragma once

#include "compat/script_values.h"
#include "compat/word_rules.h"

namespace megalith {

class ScriptWords : public RuleWords {
 public:
  // names_defaults: messages name an option's variable even if unset.
  ScriptWords(const ScriptValues& values, LaunchPlan& plan, bool names_defaults)
      : values_(values), plan_(plan), names_defaults_(names_defaults) {}

  // Rows of script_rules.table.
  void apply(std::string_view part);
  void set_switch(std::string fact, bool is_on) { set_fact(std::move(fact), is_on ? "true" : "false"); }
  // An error for each path in a variable's text that is neither a weight nor there.
  void check_paths(const std::string& said, const std::string& paths, const LaunchInputs& inputs,
                   const std::string& remedy);

  bool is_written(std::string_view name) const override { return values_.given(name) != nullptr; }
  std::string said(std::string_view name) const override;
  void set(std::string_view word, std::string option, std::string value) override;
  void drop(std::string_view option) override { plan_.drop(option); }
  void note(std::string text) override { plan_.notes.push_back(std::move(text)); }
  void fail(std::string message, std::string remedy) override {
    plan_.errors.emplace_back(std::move(message), std::move(remedy));
  }
  [[noreturn]] void refuse(std::string_view word, std::string_view expected, std::string remedy = "") const override;

 protected:
  std::optional<std::string> value_of(std::string_view name) const override;

 private:
  const ScriptValues& values_;
  LaunchPlan& plan_;
  const bool names_defaults_;
};

}  // namespace megalith
