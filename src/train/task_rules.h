// Rules between a run's task, its model and its data.
#pragma once

#include <vector>

#include "train/config.h"

namespace megalith {

// With model_type diffusion_model, in the place of the rules of sequences: options of texts, sizes, layouts that share
// a sequence. Sets d.seq_length to the tokens of a picture, which are counted, not asked for.
void check_pictures(const Config& config, Derived& d, std::vector<UserError>& errors);

// What the task needs and the run does not have, and options of other tasks' data.
void check_task(const Resolved& resolved, std::vector<UserError>& errors);

}  // namespace megalith
