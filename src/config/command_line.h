// The command line: `--x 1`, `--x=1`, bare switches, `x=1`, dashes or underscores.
//
// Names are looked up whole first (look_up in known_names.h): `--no_fp8_weight_transpose_cache true` is an option, and
// `--no-NAME` negates a boolean only if the whole name is unknown. A boolean takes the next word if it reads as a
// boolean; other options take it unless it starts with `--`; a list takes all words up to one that does (argparse's
// nargs='+'). -1 and -1e-5 are values. The last setting wins.
#pragma once

#include <string>
#include <vector>

#include "config/known_names.h"
#include "config/option.h"
#include "config/setting.h"
#include "core/error.h"

namespace megalith {

struct CommandLine {
  std::vector<Setting> settings;  // in order; bare switches are "true"
  std::vector<std::string> positional;
  std::vector<std::string> config_files;  // of each --config (or --exp, Primus's older word), declared or not
  bool wants_help = false;
  std::vector<UserError> errors;
};

// Reads arguments (without program name and subcommand) without changing options; collects unknown names and missing
// values in `errors`, skipping an unknown name's values.
CommandLine read_command_line(const std::vector<std::string>& arguments, const OptionSet& options,
                              const OtherCommands& others = {});

}  // namespace megalith
