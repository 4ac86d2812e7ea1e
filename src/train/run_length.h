// A run's length: samples per step, steps, passes over instructions.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "train/config.h"

namespace megalith {

// Global batch, microbatches and steps. For train_epochs a few steps are assumed until count_epochs().
void check_run_length(const Config& config, Derived& derived, std::vector<UserError>& errors);

// The number of ranks nearest to world_size that the parallel sizes and the batch allow; near 1 it is the fewest.
std::optional<int64_t> fitting_world(const Config& config, int64_t world_size);

// Ranks of the run. Unless told, a dry run takes the fewest that layout and batch allow, or about a node of the GPUs
// that its file is for, and notes it.
int64_t world_of_run(Resolved& resolved, int64_t world_size);

// train_epochs in steps. Tokenising may have taken long, so only errors that depend on the rows' number are left:
// UserError.
void count_epochs(Resolved& resolved);

}  // namespace megalith
