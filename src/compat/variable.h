// The one table of variables that other tools' scripts have: every spelling, whose scripts have it, what it is without
// a word of the user, and what it becomes here. Reading, messages in the user's spelling, `megalith launch NAME
// --help`, docs/scripts.md and the tests' lists are derived from it. Its rows are config/dialects/scripts.table.
//
// A variable of one of ROCm's scripts works in all of them. The others have their own.
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
  kOption,     // becomes one option, or one value of it one
  kOptions,    // several options, or one that others also decide: compat/launch_rules.cc
  kLaunching,  // how many processes are started, where, and whether at all
  kLogging,    // where the log goes
  kExported,   // a variable of the processes
  kNoEffect,   // changes nothing here: `reason`
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
  std::string source;  // where it is described: a page and its line, or the script it is from
  std::string option;  // kOption
  std::string help;
  std::string reason;              // kNoEffect, kRefused
  std::string typed;               // kLaunching, kLogging: what it is where no script reads it
  std::string neutral;             // kRefused: the value that asks for nothing
  std::vector<std::string> words;  // kWord
  int least = 1, most = 1'000'000'000;  // kCount
  bool is_secret = false;               // its value is never printed

  std::string_view name() const { return spellings.front(); }
  // Nothing when the front end has none.
  std::optional<std::string_view> default_of(FrontEnd front_end) const;
  bool acts_in(FrontEnd front_end) const;
};

std::span<const ScriptVariable> script_variables();
// The rows that are no variables of an environment: -m and the like, which follow a script.
std::span<const ScriptVariable> script_flags();
// The variables that only fine-tuning in AMD's benchmarks reads.
std::vector<const ScriptVariable*> finetuning_variables();
// By any spelling; null when there is none.
const ScriptVariable* find_script_variable(std::string_view spelling);
// The rows that act in a front end, in their order.
std::vector<const ScriptVariable*> variables_of(FrontEnd front_end);

// "TP=2", and of a flag "-m Llama-3.1-8B".
std::string said_as(std::string_view spelling, std::string_view value);

}  // namespace megalith
