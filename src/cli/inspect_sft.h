// `megalith inspect sft`: which tokens of instruction data count in the loss, sample by sample and over the set.
#pragma once

#include "cli/command.h"

namespace megalith {

int inspect_sft(CommandContext& context);
CommandOptions inspect_sft_options();

}  // namespace megalith
