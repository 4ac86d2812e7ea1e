// `megalith prepare --sft`: instruction data into tokens and masks, ahead of training.
#pragma once

#include "cli/command.h"

namespace megalith {

// Arguments without --sft.
int prepare_sft_files(CommandContext& context);

CommandOptions prepare_sft_options();

}  // namespace megalith
