// `megalith prepare flux`: pictures and captions through FLUX's frozen encoders, ahead of training.
#pragma once

#include "cli/command.h"

namespace megalith {

int prepare_flux_pictures(CommandContext& context);

CommandOptions prepare_flux_options();

}  // namespace megalith
