// A run's length: samples per step, which may grow, steps, and passes over instructions.
#pragma once

#include <vector>

#include "train/config.h"

namespace megalith {

// Global batch, microbatches and steps. For lengths in passes (train_epochs) a few steps stand in until count_epochs().
void check_run_length(const Config& config, Derived& derived, std::vector<UserError>& errors);

// train_epochs in steps. Tokenizing the rows may have taken long, so only errors that depend on their number are left:
// UserError.
void count_epochs(Resolved& resolved);

}  // namespace megalith
