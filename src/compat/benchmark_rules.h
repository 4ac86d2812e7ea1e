// Turns the flags of AMD's benchmark scripts into a plan.
#pragma once

#include <optional>

#include "compat/launch_plan.h"
#include "compat/script_values.h"

namespace megalith {

// The tag among the words if another front end's script runs its benchmark; else null.
const BenchmarkTag* tag_of_other_script(const std::vector<std::string>& words);
// The plan of that script, with the flags in its own variables.
LaunchPlan plan_tagged_benchmark(const BenchmarkTag& tag, const LaunchInputs& inputs);

// The options of the PyTorch scripts' own benchmarks.
void plan_benchmark_options(const ScriptValues& values, const LaunchInputs& inputs, LaunchPlan& plan);

}  // namespace megalith
