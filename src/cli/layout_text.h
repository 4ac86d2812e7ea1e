// A run's layout in words.
#pragma once

#include <cstdint>
#include <string>

#include "train/config.h"

namespace megalith {

// "tp 8, pp 4, dp 4, sequence_parallel, use_distributed_optimizer"
std::string layout_text(const Resolved& resolved, int64_t world_size);

}  // namespace megalith
