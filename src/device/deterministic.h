// Reproducible results. On a CPU they are for a fixed number of threads; on a GPU this excludes algorithms that add in
// order of arrival.
#pragma once

namespace megalith {

// Process-wide: for main functions, before the first operator runs. Operators without a deterministic form then throw.
// Sets CUBLAS_WORKSPACE_CONFIG, which cuBLAS reads at first use, unless the environment has it.
void set_deterministic(bool is_deterministic);

bool is_deterministic();

}  // namespace megalith
