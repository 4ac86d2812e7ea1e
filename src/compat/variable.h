// The one table of variables of other tools' scripts: spellings, scripts, defaults, and meanings here. Parsing,
// messages in the user's spelling, `megalith launch NAME --help`, docs/scripts.md and the tests' lists are derived from
// it. Its rows are config/dialects/scripts.table.
//
// A variable of one ROCm script works in all of them. The others have their own.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "compat/front_end.h"

namespace megalith {

enum class VariableKind {
  kOption,     // one option, or one value maps to an option
  kOptions,    // several options, or one that others also decide: compat/launch_rules.cc
  kLaunching,  // process count and placement, or not starting at all
  kLogging,    // where the log goes
  kExported,   // a variable of the processes
  kNoEffect,   // ignored: `reason`
  kRefused,    // would change results: an error unless its value asks for nothing
};
std::string_view name_of(VariableKind kind);

enum class VariableType {
  kSwitch,  // 0, 1, true, false; held as 0 or 1
  kCount,   // a whole number, also written 128.0
  kNumber,  // 1e-5
  kWord,    // one of `words`
  kText,
};

struct ScriptVariable {
  std::vector<std::string> spellings;  // the first one is shown; -m and --model_repo take the next word
  VariableKind kind;
  VariableType type;
  FrontEnds front_ends;  // whose pages or scripts have it
  std::vector<std::pair<FrontEnds, std::string>> defaults;
  std::string source;  // where it is documented: a page and line, or a script
  std::string option;  // kOption
  std::string help;
  std::string reason;              // kNoEffect, kRefused
  std::string typed;               // kLaunching, kLogging: its equivalent without a script
  std::string neutral;             // kRefused: the value that asks for nothing
  std::vector<std::string> words;  // kWord
  int least = 1, most = 1'000'000'000;  // kCount
  bool is_secret = false;               // never printed

  std::string_view name() const { return spellings.front(); }
  // Nothing if the front end has none.
  std::optional<std::string_view> default_of(FrontEnd front_end) const;
  bool acts_in(FrontEnd front_end) const;
};

std::span<const ScriptVariable> script_variables();
// Rows that are flags, not variables of an environment: -m and the like, after a script.
std::span<const ScriptVariable> script_flags();
// Variables read only by fine-tuning in AMD's benchmarks.
std::vector<const ScriptVariable*> finetuning_variables();
// By any spelling; null if unknown.
const ScriptVariable* find_script_variable(std::string_view spelling);
// The rows that act in a front end, in table order.
std::vector<const ScriptVariable*> variables_of(FrontEnd front_end);

// "TP=2", or for a flag "-m Llama-3.1-8B".
std::string said_as(std::string_view spelling, std::string_view value);

}  // namespace megalith
