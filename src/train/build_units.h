// Some units of a run's model, each as a chunk by itself: to look at one of each kind (train/step_units.h).
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "train/setup.h"

namespace megalith {

// On this rank of the run's pipeline, on the meta device, without full recomputation and eight-bit products. The owner
// of a parameter that several units use comes before its users, or is not there.
//   holders  pipeline ranks that hold a shared parameter (PipelinePlan::parameter_holders)
BuiltModel build_units(const Resolved& resolved, const Groups& groups, const std::vector<UnitRange>& units,
                       const std::map<std::string, std::set<int>>& holders);

}  // namespace megalith
