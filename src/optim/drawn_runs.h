// Maps a rank's elements to the canonical tensors: random numbers are drawn by name and position, independent of
// layout.
#pragma once

#include <vector>

#include "ops/adamw/kernel.h"
#include "parallel/data_parallel.h"

namespace megalith {

// A run of a part's elements, and their canonical positions.
struct PartRun {
  FlatRange range;  // in the flattened part
  ops::DrawnRun drawn;
};

// A part without its padding, in few runs: one per Placement piece that is wholly in the part, up to three where the
// part begins or ends within rows.
std::vector<PartRun> drawn_runs(const OwnedPart& part);

}  // namespace megalith
