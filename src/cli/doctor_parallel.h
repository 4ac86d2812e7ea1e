// megalith doctor --parallel: checks that the parallel layout of a configuration computes the same as one rank.
#pragma once

#include "cli/command.h"

namespace megalith {

// context.arguments: those of `megalith train`, without --parallel. Without a launcher every rank is a thread of this
// process; under torchrun, srun or mpirun this process is one rank. kExitSuccess if all agrees, else kExitFailure with
// the first difference on standard output.
int run_doctor_parallel(CommandContext& context);

}  // namespace megalith
