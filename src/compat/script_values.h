// Reading variables of scripts: from `.env`, the environment and the command line to one value a variable.
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
  std::string value;        // in its own form: switches are 0 or 1, counts have no ".0"
  bool is_default = false;  // nobody said it

  std::string text() const { return said_as(spelling, value); }
};

class ScriptValues {
 public:
  // What is wrong goes to errors, and is left out.
  ScriptValues(const LaunchInputs& inputs, std::vector<UserError>& errors);

  // By the variable's first spelling; null when neither the user nor the table says anything.
  const ScriptValue* find(std::string_view name) const;
  // The same when the user said it.
  const ScriptValue* given(std::string_view name) const;
  bool is_on(std::string_view name) const;  // of a switch
  int count(std::string_view name) const;   // of a count that has a default
  std::string text(std::string_view name) const;

  // In the table's order.
  const std::vector<ScriptValue>& all() const { return values_; }
  const std::vector<std::string>& options() const { return options_; }  // words that are the trainer's
  // Of `.env`: what no row of the table knows.
  const std::map<std::string, std::string>& other_exports() const { return other_exports_; }

 private:
  std::vector<ScriptValue> values_;
  std::vector<std::string> options_;
  std::map<std::string, std::string> other_exports_;
};

// KEY=VALUE lines, perhaps behind `export`, with quotes or without; comments and empty lines are passed over.
std::map<std::string, std::string> read_env_file(std::string_view text, std::vector<UserError>& errors);

}  // namespace megalith
