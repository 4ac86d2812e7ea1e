// Weights that freeze keeps from being trained, always or until thaw_at.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "comm/group.h"
#include "core/error.h"
#include "nn/parameter.h"
#include "train/config.h"

namespace megalith {

// Errors for expressions that are none, and for options that they exclude.
std::vector<UserError> check_freeze(const Config& config);

// Parameters of which freeze names a weight.
std::set<const Parameter*> named_to_freeze(const Config& config, const std::vector<Parameter*>& parameters);

// Marks this rank's parameters, unless they thaw later. One parameter holds several weights (queries, keys and values;
// experts): they are frozen together.
void freeze_weights(const Config& config, const std::vector<Parameter*>& parameters);

// UserError, on all ranks, for expressions that match no weight of the model, only a part of what a parameter holds, or
// a weight without its bias; and if nothing is left to train. Collective over the world.
void check_frozen(const Config& config, const std::vector<Parameter*>& parameters, Group& world);

}  // namespace megalith
