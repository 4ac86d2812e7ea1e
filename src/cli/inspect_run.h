// megalith inspect run, inspect runs: the history of a run from its folder, and several runs side by side.
#pragma once

#include "cli/command.h"

namespace megalith {

int inspect_run(CommandContext& context);
int inspect_runs(CommandContext& context);
CommandOptions inspect_runs_options();

}  // namespace megalith
