// The migration guide: what a variable of ROCm's scripts is as a key of a Primus experiment file and as an option, and
// what a command of the one tool is in the other's form. Rows are worked out by the rules that `megalith launch` plans
// by, so the page docs/migration.md says what happens; a test resolves every row in all its forms.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "compat/launch_plan.h"

namespace megalith {

struct MigrationRow {
  const ScriptVariable* variable = nullptr;  // the one that the row is about
  FrontEnd front_end = FrontEnd::kLlama3;
  std::string context;                                      // words that must stand beside it: "AC=full"
  std::string word;                                         // "RECOMPUTE_METHOD=uniform"
  std::string config;                                       // a preset, where the word chooses it
  std::vector<std::pair<std::string, std::string>> values;  // options and their values; null takes one back
};

// As it would be planned on a machine with eight GPUs on which every file is there.
LaunchPlan plan_example(FrontEnd front_end, const std::string& words);

std::vector<MigrationRow> migration_rows();

// One run as the guide of each tool prints it, and what must be typed behind the second to get the first's numbers,
// too: the guides' scripts have other learning rates, say.
struct MigratedCommand {
  std::string source;
  FrontEnd front_end;
  std::string launcher, script, variables;  // bash, examples/…, "MBS=2 BS=16"
  std::string settings;                     // what that script sets by itself
  std::string primus_variables, experiment, primus_script, options;
  std::string same_numbers;
};
std::span<const MigratedCommand> migrated_commands();

// docs/migration.md
std::string migration_page();

}  // namespace megalith
