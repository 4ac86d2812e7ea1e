// Rules between a run's task, model and data.
#pragma once

#include <vector>

#include "train/config.h"

namespace megalith {

// For model_type diffusion_model, instead of the rules of sequences: text options, sizes, layouts that share a
// sequence. Sets d.seq_length to a picture's tokens.
void check_pictures(const Config& config, Derived& d, std::vector<UserError>& errors);

// Errors for missing requirements of the task, and for options of other tasks' data.
void check_task(const Resolved& resolved, std::vector<UserError>& errors);

}  // namespace megalith
