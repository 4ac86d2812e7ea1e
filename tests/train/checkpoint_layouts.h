// Checkpoints through the trainer, from every way of sharding to every other: what the tests of dense models and of
// experts share.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "support/module_tools.h"

namespace megalith::test {

using StepLosses = std::vector<std::pair<int64_t, double>>;

struct DataLayout {
  std::string name;
  int tp = 1, dp = 1;
  std::vector<std::string> words;
  int cp = 1, pp = 1;
  int ep = 1, etp = 0;  // etp 0: tp
};

// Forty documents of 8 to 47 tokens below 67; mock data would take longer to index than the runs take. The prefix.
std::string write_documents(const std::filesystem::path& folder);

// Trains batches of four sequences of 16 with the model's words, the layout's and these, and gives rank 0's losses.
StepLosses train_layout(const std::vector<std::string>& model, const DataLayout& layout,
                        const std::vector<std::string>& more);

// Everything a checkpoint's files hold, by canonical name.
TensorMap stored_tensors(const std::filesystem::path& folder, int64_t iteration);

// Saved under each layout, the first of which is one rank, and loaded under each other: parameters and optimizer state
// are the same bytes, gathered by saving them again untrained. Each layout goes on from the one before it with the
// losses of the first within `tolerance`; 0 where they are not compared. `data`: the option that names them; empty:
// write_documents().
void expect_every_layout_goes_on_from_every_other(const std::vector<std::string>& model,
                                                  const std::vector<DataLayout>& layouts, const std::string& precision,
                                                  double tolerance, const std::string& data = "");

}  // namespace megalith::test
