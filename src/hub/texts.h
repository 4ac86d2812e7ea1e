// Data sets of the hub as files of texts: `prepare --input org/name`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "config/option.h"
#include "core/log.h"
#include "hub/hub.h"
#include "hub/text_files.h"

namespace megalith {

// The local files that a value of `option` stands for: what exists and what is no name of a repository as it is, else
// those of choose_texts(), from the hub's cache or fetched. Throws as resolve_hub_path() does.
std::vector<std::string> resolve_hub_texts(const std::string& option, const std::string& value,
                                           const EnvironmentMap& environment, const HubOptions& options, Logger& log,
                                           const std::optional<std::string>& split = {});

}  // namespace megalith
