// See deterministic.h.
#include "device/deterministic.h"

#include <ATen/Context.h>

#include <cstdlib>

namespace megalith {

void set_deterministic(bool is_deterministic) {
  at::Context& context = at::globalContext();
  if (is_deterministic) ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  context.setDeterministicAlgorithms(is_deterministic, /*warn_only=*/false);
  // Filling every fresh tensor with NaN is LibTorch's default in this mode; it finds bugs, but costs a pass over
  // memory.
  context.setDeterministicFillUninitializedMemory(false);
  context.setDeterministicCuDNN(is_deterministic);
  context.setBenchmarkCuDNN(false);  // trying algorithms out picks another one in every run
}

bool is_deterministic() { return at::globalContext().deterministicAlgorithms(); }

}  // namespace megalith
