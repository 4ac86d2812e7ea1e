// The migration guide: maps variables of ROCm's scripts to keys of a Primus experiment file and to options, and
// commands of one tool to the other's. Rows come from the rules of `megalith launch`, so docs/migration.md is true by
// construction; a test resolves every row in all its forms.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "compat/launch_plan.h"

namespace megalith {

struct MigrationRow {
  const ScriptVariable* variable = nullptr;  // the row's variable
  FrontEnd front_end = FrontEnd::kLlama3;
  std::string context;                                      // words required with it: "AC=full"
  std::string word;                                         // "RECOMPUTE_METHOD=uniform"
  std::string config;                                       // a preset, if the word chooses it
  std::vector<std::pair<std::string, std::string>> values;  // options and their values; null resets one
};

// As planned on a machine with eight GPUs where every file exists.
LaunchPlan plan_example(FrontEnd front_end, const std::string& words);

std::vector<MigrationRow> migration_rows();

// One run as each tool's guide prints it, and what to append to the second for the first's numbers: the guides' scripts
// differ in learning rate, say.
struct MigratedCommand {
  std::string source;
  FrontEnd front_end;
  std::string launcher, script, variables;  // bash, examples/…, "MBS=2 BS=16"
  std::string settings;                     // set by that script itself
  std::string primus_variables, experiment, primus_script, options;
  std::string same_numbers;
};
std::span<const MigratedCommand> migrated_commands();

// docs/migration.md
std::string migration_page();

}  // namespace megalith
