// FLUX in AMD's benchmarks: what a dry run tells of a model that is not trained here yet.
#pragma once

#include <string>

#include "compat/launch_plan.h"

namespace megalith {

// Weights that are trained: the rectified-flow transformer of FLUX.1-dev, without the embedding of a guidance, which
// training does not have.
int64_t flux_parameters();

// Layout, batch and the memory of a rank without activations, as text or as one JSON object.
std::string flux_dry_run(const LaunchPlan& plan);

}  // namespace megalith
