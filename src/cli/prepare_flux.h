// `megalith prepare flux`: encodes pictures and captions with FLUX's frozen encoders, ahead of training.
#pragma once

#include <filesystem>

#include "cli/command.h"

namespace megalith {

int prepare_flux_pictures(CommandContext& context);

// The same with all options at their defaults, unless `output` already holds prepared pictures.
void prepare_pictures_once(const std::filesystem::path& input, const std::filesystem::path& model,
                           const std::filesystem::path& output, Logger& log);

CommandOptions prepare_flux_options();

}  // namespace megalith
