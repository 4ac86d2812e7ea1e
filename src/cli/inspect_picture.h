// `megalith inspect picture`: a picture as decoded, and as an image model's input.
#pragma once

#include "cli/command.h"

namespace megalith {

int inspect_picture(CommandContext& context);
CommandOptions inspect_picture_options();

}  // namespace megalith
