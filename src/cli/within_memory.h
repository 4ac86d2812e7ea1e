// Commands that hold a model run within this: what cannot fit is refused before it is allocated, and memory that runs
// out all the same is told in the same words.
#pragma once

#include <functional>

#include "cli/session.h"
#include "train/memory_check.h"

namespace megalith {

// measure  what this rank will hold; body gets its answer
int run_within_memory(const Session& session, const Launch& launch, const MemoryMeasure& measure,
                      const std::function<int(const MemoryEstimate&)>& body);

}  // namespace megalith
