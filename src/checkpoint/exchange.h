// Communication between ranks around a checkpoint: short texts, and collective success.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/group.h"

namespace megalith {

// Every rank's text, in rank order, on every rank.
std::vector<std::string> gather_texts(Group& group, std::string_view text, std::string_view label);

// The root's text on every rank.
std::string broadcast_text(Group& group, std::string_view text, int root, std::string_view label);

// Runs `body`; if it fails on any rank, all throw: failing ranks their own error, the others a UserError or
// InternalError with the first one's. So no rank waits in a later collective.
void run_on_all(Group& group, std::string_view label, const std::function<void()>& body);

}  // namespace megalith
