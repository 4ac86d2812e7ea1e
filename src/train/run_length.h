// How long a run is: samples of a step, whose number may grow, and steps; passes over rows of instructions.
#pragma once

#include <vector>

#include "train/config.h"

namespace megalith {

// Global batch, microbatches and steps, from sizes that are known. Where the length is given in passes (train_epochs),
// a few steps stand for it until count_epochs().
void check_run_length(const Config& config, Derived& derived, std::vector<UserError>& errors);

// train_epochs in steps. The rows are tokens by now, which may have taken long: only what depends on their number is
// said so late, as UserError.
void count_epochs(Resolved& resolved);

}  // namespace megalith
