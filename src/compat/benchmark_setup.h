// What AMD's PyTorch benchmarks need from the hub, and fetching it.
#pragma once

#include <string>
#include <vector>

#include "compat/launch_plan.h"
#include "core/log.h"

namespace megalith {

// `words` and the environment are those of the script: -m MODEL for one model, DRY_RUN=1 to see what, from where and
// how large. Prints the folder of each repository. Throws UserErrors before anything is fetched, and what fetching
// throws.
void set_up_benchmarks(const LaunchInputs& inputs, Logger& log);

}  // namespace megalith
