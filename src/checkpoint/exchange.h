// Ranks' communication around a checkpoint: short texts, common success.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/group.h"

namespace megalith {

// In rank order, on every rank.
std::vector<std::string> gather_texts(Group& group, std::string_view text, std::string_view label);

std::string broadcast_text(Group& group, std::string_view text, int root, std::string_view label);

// If `body` fails on any rank, all throw, so that none waits in a later collective: failing ranks their own error,
// others a UserError or InternalError with the first.
void run_on_all(Group& group, std::string_view label, const std::function<void()>& body);

}  // namespace megalith
