// FLUX in AMD's benchmarks: all weights of FLUX.1-dev, trained on pictures that were encoded beforehand.
#pragma once

#include <string_view>

#include "compat/launch_plan.h"
#include "compat/script_values.h"

namespace megalith {

// What the setup makes of bghira/pseudo-camera-10k, in the current folder.
inline constexpr std::string_view kPreparedPictures = "pseudo-camera-10k";

// Batch, data, weights and learning rate of -t pretrain -m Flux, for a plan whose benchmark is chosen.
void plan_flux(const BenchmarkModel& model, const ScriptValues& values, LaunchPlan& plan);

}  // namespace megalith
