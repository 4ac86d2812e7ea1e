// Runs a command that holds a model: refuses what cannot fit before it is allocated, and reports running out of memory
// in the same words.
#pragma once

#include <functional>

#include "cli/session.h"
#include "train/memory_check.h"

namespace megalith {

// measure  this rank's memory; body gets the estimate
int run_within_memory(const Session& session, const Launch& launch, const MemoryMeasure& measure,
                      const std::function<int(const MemoryEstimate&)>& body);

}  // namespace megalith
