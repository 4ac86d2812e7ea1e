// The files that paths of instruction data (sft_path.h) stand for.
#pragma once

#include <string>
#include <vector>

#include "config/yaml_document.h"
#include "core/log.h"
#include "data/sft_options.h"
#include "hub/options.h"
#include "kinds/text/sft_path.h"

namespace megalith {

// The files and folders of such paths: data sets of the hub are fetched, and a part of several files becomes a part of
// each, for which their rows may have to be counted. Paths of files that prepare --sft made stay as they are.
std::vector<std::string> resolve_sft_paths(const std::string& option, const std::vector<std::string>& paths,
                                           const EnvironmentMap& environment, const HubOptions& hub,
                                           const SftOptions& options, Logger& log);

}  // namespace megalith
