// What AMD's PyTorch benchmarks need from the hub, and fetching it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "compat/launch_plan.h"
#include "core/log.h"

namespace megalith {

// Pictures that were fetched for FLUX, and the folder of the model whose encoders read them.
struct FetchedPictures {
  std::filesystem::path pictures, model;
};

// `words` and the environment are those of the script: -m MODEL for one model, DRY_RUN=1 to see what, from where and
// how large. Prints the folder of each repository. Gives the pictures that are to be prepared then, as
// kPreparedPictures (benchmark.h). Throws UserErrors before anything is fetched, and what fetching throws.
std::optional<FetchedPictures> set_up_benchmarks(const LaunchInputs& inputs, Logger& log);

}  // namespace megalith
