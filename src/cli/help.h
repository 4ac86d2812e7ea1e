// `--help` of a command: the options that most people use; behind it a topic, an option, a part of names, or `all`.
#pragma once

#include <string_view>

#include "cli/command.h"
#include "config/option.h"

namespace megalith {

// Prints what the arguments ask for and returns kExitSuccess.
//   usage    "usage: megalith train --config FILE [--option value ...]"
// Throws UserError when nothing is known of the word behind --help.
int print_help(const CommandContext& context, std::string_view usage, const OptionSet& options);

}  // namespace megalith
