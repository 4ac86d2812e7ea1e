// `inspect data PREFIX …`: what is in a data set, or the samples that a run would read from one.
#pragma once

#include "cli/command.h"

namespace megalith {

// Counts, lengths with a picture, and the beginnings of a few documents. With --print_samples train (valid, test) one
// JSON object {"tokens", "labels"} a line for the first samples in the order of training; of other tasks than causal_lm
// every field.
int inspect_data(CommandContext& context);
CommandOptions inspect_data_options();

}  // namespace megalith
