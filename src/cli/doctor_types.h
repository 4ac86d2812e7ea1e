// megalith doctor --types: the distribution of every tensor of a step, checked without numbers.
#pragma once

#include "cli/command.h"

namespace megalith {

// context.arguments: those of `megalith train`, without --types. kExitSuccess if all types fit, else kExitFailure with
// what does not on standard output.
int run_doctor_types(CommandContext& context);

}  // namespace megalith
