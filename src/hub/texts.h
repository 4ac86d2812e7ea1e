// Data sets of the hub as text files: `prepare --input org/name`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "config/option.h"
#include "core/log.h"
#include "hub/hub.h"
#include "hub/text_files.h"

namespace megalith {

// The local files for a value of `option`: existing paths and non-names as they are, else those of choose_texts(),
// cached or fetched. Throws as resolve_hub_path() does.
std::vector<std::string> resolve_hub_texts(const std::string& option, const std::string& value,
                                           const EnvironmentMap& environment, const HubOptions& options, Logger& log,
                                           const std::optional<std::string>& split = {});

}  // namespace megalith
