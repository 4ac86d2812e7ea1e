// Fetches what AMD's PyTorch benchmarks need from the hub.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "compat/launch_plan.h"
#include "core/log.h"

namespace megalith {

// FLUX's pictures, and the folder of the model whose encoders read them.
struct FetchedPictures {
  std::filesystem::path pictures, model;
};

// `words` and the environment are the script's: -m MODEL limits it to one model, DRY_RUN=1 lists what would be fetched,
// from where, and its size. Prints the folder of each repository. Returns pictures still to be prepared as
// kPreparedPictures (benchmark.h). UserErrors come before anything is fetched; errors of fetching are passed on.
std::optional<FetchedPictures> set_up_benchmarks(const LaunchInputs& inputs, Logger& log);

}  // namespace megalith
