// Whether the Hugging Face hub answers, and takes the token.
#pragma once

#include "core/finding.h"
#include "hub/cache.h"

namespace megalith {

// Findings of the topic "environment": "hub", and "hub token" when the hub was reached. Asks once, for who the token's
// owner is; the waiting is bounded by the settings' connect and stall timeouts. The token is in no finding.
Findings check_hub(const HubSettings& settings);

// What an answer means. Pure.
//   status  of GET {endpoint}/api/whoami-v2
//   body    its text
Findings judge_hub_answer(const HubSettings& settings, int status, const std::string& body);

}  // namespace megalith
