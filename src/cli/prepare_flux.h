// `megalith prepare flux`: pictures and captions through FLUX's frozen encoders, ahead of training.
#pragma once

#include <filesystem>

#include "cli/command.h"

namespace megalith {

int prepare_flux_pictures(CommandContext& context);

// The same with all options at their defaults, where `output` does not hold prepared pictures already.
void prepare_pictures_once(const std::filesystem::path& input, const std::filesystem::path& model,
                           const std::filesystem::path& output, Logger& log);

CommandOptions prepare_flux_options();

}  // namespace megalith
