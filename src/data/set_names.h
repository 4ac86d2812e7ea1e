// Names of data sets of one kind, which are words of log lines and metrics.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace megalith {

// UserError naming the option unless each of the paths has a name of its own, on one line and without slashes.
//   paths  the option that has them
void check_set_names(std::string_view option, const std::vector<std::string>& names, std::string_view paths,
                     size_t num_paths);

}  // namespace megalith
