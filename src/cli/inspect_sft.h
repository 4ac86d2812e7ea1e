// `megalith inspect sft`: the tokens of instruction data that count in the loss, per sample and over the set.
#pragma once

#include "cli/command.h"

namespace megalith {

int inspect_sft(CommandContext& context);
CommandOptions inspect_sft_options();

}  // namespace megalith
