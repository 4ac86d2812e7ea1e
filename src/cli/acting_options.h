// Which options of a run's configuration have an effect in a command that does not train. The others are refused on its
// command line and are not in its help; a configuration file, which is made for training, may have them.
#pragma once

#include <string_view>

#include "config/option.h"

namespace megalith {

// command  "generate", "bench gemm". A command's own options always act, and so do all options in `train`, and in
//          `doctor` and `inspect config`, which are given a run's whole command line.
bool acts_in(std::string_view command, const Option& option);

// Whether the option belongs to the configuration of a run, which several commands have.
bool is_run_option(const Option& option);

}  // namespace megalith
