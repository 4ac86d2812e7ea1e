// What a dry run tells: configuration, layout, size and the memory of a rank by owner. Nothing is allocated.
#pragma once

#include <string>

#include "train/memory_estimate.h"
#include "train/report.h"

namespace megalith {

struct DryRun {
  ModelNumbers numbers;
  MemoryEstimate memory;  // of the rank that holds most
};

// For the world that the configuration was resolved for, on the meta device.
DryRun make_dry_run(const Resolved& resolved);

// As it is printed, with a line break at its end.
std::string dry_run_text(const Resolved& resolved, const DryRun& run);

}  // namespace megalith
