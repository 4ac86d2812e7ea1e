#include "device/deterministic.h"

#include <ATen/Context.h>

#include <cstdlib>

namespace megalith {

void set_deterministic(bool is_deterministic) {
  at::Context& context = at::globalContext();
  if (is_deterministic) ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  context.setDeterministicAlgorithms(is_deterministic, /*warn_only=*/false);
  // The default would fill fresh tensors with NaN: a pass over memory.
  context.setDeterministicFillUninitializedMemory(false);
  context.setDeterministicCuDNN(is_deterministic);
  context.setBenchmarkCuDNN(false);
}

bool is_deterministic() { return at::globalContext().deterministicAlgorithms(); }

}  // namespace megalith
