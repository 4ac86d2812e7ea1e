// Reproducible results; on a CPU for a fixed number of threads.
#pragma once

namespace megalith {

// Process-wide. Call before the first operator: cuBLAS reads CUBLAS_WORKSPACE_CONFIG, set here unless the environment
// has it, at first use. Operators without a deterministic form then throw.
void set_deterministic(bool is_deterministic);

bool is_deterministic();

}  // namespace megalith
