// The hub's data sets as text files: `prepare --input org/name`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "config/option.h"
#include "core/log.h"
#include "hub/hub.h"
#include "hub/text_files.h"

namespace megalith {

// Existing paths and non-names as they are, else choose_texts(), cached or fetched. Throws as resolve_hub_path().
std::vector<std::string> resolve_hub_texts(const std::string& option, const std::string& value,
                                           const EnvironmentMap& environment, const HubOptions& options, Logger& log,
                                           const std::optional<std::string>& split = {});

}  // namespace megalith
