// Options of a run's configuration that have an effect in a command that does not train. Others are refused on its
// command line and left out of its help; a configuration file, made for training, may have them.
#pragma once

#include <string_view>

#include "config/option.h"

namespace megalith {

// command  "generate", "bench gemm". A command's own options always act, as do all options in `train`, `doctor` and
//          `inspect config`, which take a run's whole command line.
bool acts_in(std::string_view command, const Option& option);

// True for an option of a run's configuration, shared by several commands.
bool is_run_option(const Option& option);

}  // namespace megalith
