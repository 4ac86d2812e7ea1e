// megalith doctor --parallel: whether the parallel layout of a configuration computes what one rank computes.
#pragma once

#include "cli/command.h"

namespace megalith {

// context.arguments: those of `megalith train`, without --parallel. Without a launcher every rank is a thread of this
// process; under torchrun, srun or mpirun this process is one rank. kExitSuccess when all agrees, kExitFailure and the
// first difference on standard output when not.
int run_doctor_parallel(CommandContext& context);

}  // namespace megalith
