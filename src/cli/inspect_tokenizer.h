// `megalith inspect tokenizer`: a tokenizer's vocabulary; texts to ids and back, for comparison with other programs.
#pragma once

#include "cli/command.h"

namespace megalith {

int inspect_tokenizer(CommandContext& context);
CommandOptions inspect_tokenizer_options();

}  // namespace megalith
