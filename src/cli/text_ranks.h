// Checks that all ranks generate one text together.
#pragma once

#include "train/config.h"

namespace megalith {

// UserError where some ranks would be replicas of the model, which would all write the same text. Ranks that hold
// experts of their own are none, though they see the same tokens.
void check_writing_ranks(const Resolved& resolved);

}  // namespace megalith
