// `megalith inspect picture`: a picture as it is read, and as an image model is given it.
#pragma once

#include "cli/command.h"

namespace megalith {

int inspect_picture(CommandContext& context);
CommandOptions inspect_picture_options();

}  // namespace megalith
