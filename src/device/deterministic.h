// Results that do not vary from run to run. On a CPU they do not anyway for a fixed number of threads; on a GPU this
// excludes algorithms that add in the order of arrival.
#pragma once

namespace megalith {

// Changes LibTorch's process-wide settings: for main functions, before the first operator runs. An operator that has no
// deterministic form throws when it is called. Sets CUBLAS_WORKSPACE_CONFIG unless the environment has it, which cuBLAS
// reads when it is first used.
void set_deterministic(bool is_deterministic);

bool is_deterministic();

}  // namespace megalith
