// `--help` of a command: the most used options; followed by a topic, an option, part of names, or `all`.
#pragma once

#include <string_view>

#include "cli/command.h"
#include "config/option.h"

namespace megalith {

// Prints what the arguments ask for and returns kExitSuccess.
//   usage    "usage: megalith train --config FILE [--option value ...]"
// Throws UserError if the word after --help is unknown.
int print_help(const CommandContext& context, std::string_view usage, const OptionSet& options);

}  // namespace megalith
