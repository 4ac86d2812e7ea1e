// Checks that the Hugging Face hub answers and accepts the token.
#pragma once

#include "core/finding.h"
#include "hub/cache.h"

namespace megalith {

// Topic "environment": "hub", and "hub token" if the hub was reached. One request, for the token's owner, bounded by
// the settings' connect and stall timeouts. Findings never contain the token.
Findings check_hub(const HubSettings& settings);

// Interprets an answer. Pure.
//   status  of GET {endpoint}/api/whoami-v2
//   body    its text
Findings judge_hub_answer(const HubSettings& settings, int status, const std::string& body);

}  // namespace megalith
