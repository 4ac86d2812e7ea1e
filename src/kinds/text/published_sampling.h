// Default sampling of a published model: its generation_config.json.
#pragma once

#include <optional>
#include <string>

#include "train/config.h"
#include "train/sampling.h"

namespace megalith {

// Takes temperature, top_k and top_p of the loaded Hugging Face folder for those that the person did not set, and says
// which; do_sample false is temperature 0. Nothing without such a file. UserError if it cannot be read, or has what
// no option may have.
std::optional<std::string> take_published_sampling(const Resolved& run, SamplingOptions& sampling);

}  // namespace megalith
