// TINY=1: runs a front end at toy width, so that its script really trains on a CPU.
#pragma once

#include <string>
#include <vector>

#include "train/config.h"

namespace megalith {

// Options that make parallel sizes fit this many ranks: sizes that do not divide them become 1. Empty if all fit.
std::vector<std::string> fitting_layout(const ParallelOptions& parallel, int world_size);

struct TinyRun {
  std::vector<std::string> options;  // go last on the command line
  std::string note;                  // one line
};

// Shrinks the configuration as `doctor --parallel` does, with longer rows for sentences. Keeps data, vocabulary,
// duration, precision and learning rate.
TinyRun make_tiny(const Resolved& resolved);

}  // namespace megalith
