// A run's length: samples per step, steps, passes over instructions.
#pragma once

#include <vector>

#include "train/config.h"

namespace megalith {

// Global batch, microbatches and steps. For train_epochs a few steps are assumed until count_epochs().
void check_run_length(const Config& config, Derived& derived, std::vector<UserError>& errors);

// train_epochs in steps. Tokenising may have taken long, so only errors that depend on the rows' number are left:
// UserError.
void count_epochs(Resolved& resolved);

}  // namespace megalith
