// Where the elements that a rank updates lie in the canonical tensors: random numbers are drawn by name and place, so
// that every layout draws the same.
#pragma once

#include <vector>

#include "ops/adamw/kernel.h"
#include "parallel/data_parallel.h"

namespace megalith {

// A run of a part's elements, and which elements of a canonical tensor they are.
struct PartRun {
  FlatRange range;  // of the part, flattened
  ops::DrawnRun drawn;
};

// All of a part but its padding, in as few runs as rows of neighbours allow: one for each piece of a Placement that
// lies whole in the part, and up to three where the part begins and ends within rows.
std::vector<PartRun> drawn_runs(const OwnedPart& part);

}  // namespace megalith
