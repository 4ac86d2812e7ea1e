// Copies of a run with other options, to compare what they take.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "train/config.h"

namespace megalith {

// A changed copy on `world_size` ranks, without files, since only sizes matter. Errors include those due to what the
// copy lacks, such as a tokenizer.
std::unique_ptr<Resolved> alter_run(const Resolved& run, const std::function<void(Resolved&)>& change,
                                    int64_t world_size, std::vector<UserError>& errors);

}  // namespace megalith
