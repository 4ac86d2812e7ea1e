// Maps a rank's elements to canonical tensors, so random draws, keyed by name and position, do not depend on layout.
#pragma once

#include <vector>

#include "ops/adamw/kernel.h"
#include "parallel/data_parallel.h"

namespace megalith {

// A run of a part's elements, and its canonical positions.
struct PartRun {
  FlatRange range;  // in the flattened part
  ops::DrawnRun drawn;
};

// The part without padding: a run per Placement piece wholly inside, up to three where the part begins or ends within
// rows.
std::vector<PartRun> drawn_runs(const OwnedPart& part);

}  // namespace megalith
