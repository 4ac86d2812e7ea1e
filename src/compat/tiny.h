// TINY=1: a front end's run at toy width, so that its script really trains on a processor.
#pragma once

#include <string>
#include <vector>

#include "train/config.h"

namespace megalith {

// Options that make parallel sizes fit into so few ranks: what does not divide them becomes 1. Empty when all fit.
std::vector<std::string> fitting_layout(const ParallelOptions& parallel, int world_size);

struct TinyRun {
  std::vector<std::string> options;  // behind all others on the command line
  std::string note;                  // one line
};

// The sizes to which `doctor --parallel` shrinks the same configuration, with longer rows for sentences. Data,
// vocabulary, duration, precision and learning rate stay as they are.
TinyRun make_tiny(const Resolved& resolved);

}  // namespace megalith
