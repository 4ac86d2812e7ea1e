// Output of `megalith launch`: the JSON object of a dry run, Primus's banners, a front end's help, and docs/scripts.md.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "compat/launch_plan.h"
#include "train/dry_run.h"

namespace megalith {

// One JSON object with the layout, the memory of a rank and the commands by their names; ends with a line break.
std::string dry_run_json(const LaunchPlan& plan, const Resolved& resolved, const DryRun& run,
                         const std::vector<std::pair<std::string, std::vector<std::string>>>& commands);

// Lines between which Primus's log readers look for a run's settings.
std::string primus_banner(const LaunchPlan& plan, const std::string& host);

// The variables of a front end with defaults and meanings.
std::string front_end_help(FrontEnd front_end);

// The page docs/scripts.md.
std::string scripts_page();

}  // namespace megalith
