// Checks that the hub answers and accepts the token.
#pragma once

#include "core/finding.h"
#include "hub/cache.h"

namespace megalith {

// Topic "environment": "hub", and "hub token" if reached. One request, for the token's owner, bounded by connect and
// stall timeouts. Never shows the token.
Findings check_hub(const HubSettings& settings);

// Pure.
//   status, body  of GET {endpoint}/api/whoami-v2
Findings judge_hub_answer(const HubSettings& settings, int status, const std::string& body);

}  // namespace megalith
