// Reads variables of scripts: one value each from `.env`, the environment and the command line.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "compat/launch_plan.h"

namespace megalith {

struct ScriptValue {
  const ScriptVariable* variable = nullptr;
  std::string spelling;     // as the user wrote it
  std::string value;        // normalised: switches are 0 or 1, counts have no ".0"
  bool is_default = false;  // not set by the user

  std::string text() const { return said_as(spelling, value); }
};

class ScriptValues {
 public:
  // Wrong values go to errors and are left out.
  ScriptValues(const LaunchInputs& inputs, std::vector<UserError>& errors);

  // By the variable's first spelling; null if neither the user nor the table sets it.
  const ScriptValue* find(std::string_view name) const;
  // The same, only if set by the user.
  const ScriptValue* given(std::string_view name) const;
  bool is_on(std::string_view name) const;  // of a switch
  int count(std::string_view name) const;   // of a count that has a default
  std::string text(std::string_view name) const;

  // In the table's order.
  const std::vector<ScriptValue>& all() const { return values_; }
  const std::vector<std::string>& options() const { return options_; }  // options of the trainer
  // Variables in `.env` unknown to the table.
  const std::map<std::string, std::string>& other_exports() const { return other_exports_; }

 private:
  std::vector<ScriptValue> values_;
  std::vector<std::string> options_;
  std::map<std::string, std::string> other_exports_;
};

// KEY=VALUE lines, optionally after `export` and quoted; skips comments and empty lines.
std::map<std::string, std::string> read_env_file(std::string_view text, std::vector<UserError>& errors);

}  // namespace megalith
