// Texts from one rank to all.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "comm/group.h"

namespace megalith {

// The first rank's text on every rank, nothing if it has none. Blocking; the others' texts are not read.
std::optional<std::string> share_text(std::optional<std::string> text, Group& group, std::string_view label);

}  // namespace megalith
