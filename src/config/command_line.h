// The command line: `--x 1`, `--x=1`, bare switches, `x=1`, dashes or underscores.
//
// A name is looked up whole first (look_up in known_names.h), so `--no_fp8_weight_transpose_cache true` is an option by
// itself, and `--no-NAME` negates a boolean only when the whole name is unknown. A boolean takes the next word when
// that reads as a boolean; another option takes the next word unless it starts with `--`; a list takes all words up to
// the next that starts with `--` (argparse's nargs='+'). -1 and -1e-5 are values. Applied in order, so the last wins.
#pragma once

#include <string>
#include <vector>

#include "config/known_names.h"
#include "config/option.h"
#include "config/setting.h"
#include "core/error.h"

namespace megalith {

struct CommandLine {
  std::vector<Setting> settings;          // in order; bare switches have the value "true"
  std::vector<std::string> positional;    // words that belong to no option
  std::vector<std::string> config_files;  // of each --config (or --exp, Primus's older word), declared or not
  bool wants_help = false;                // --help or -h
  std::vector<UserError> errors;
};

// Reads arguments (without the program's name and subcommand) against the options. Changes no option; unknown names
// and missing values are collected in `errors`, and the words behind an unknown name are skipped with it.
CommandLine read_command_line(const std::vector<std::string>& arguments, const OptionSet& options,
                              const OtherCommands& others = {});

}  // namespace megalith
