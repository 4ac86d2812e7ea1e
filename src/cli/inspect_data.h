// `inspect data PREFIX …`: the contents of a data set, or the samples that a run would read from it.
#pragma once

#include "cli/command.h"

namespace megalith {

// Counts, lengths with a histogram, and the beginnings of a few documents. With --print_samples train (valid, test),
// one JSON object {"tokens", "labels"} per line for the first samples in training order; all fields for tasks other
// than causal_lm.
int inspect_data(CommandContext& context);
CommandOptions inspect_data_options();

}  // namespace megalith
