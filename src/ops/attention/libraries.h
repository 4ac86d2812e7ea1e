// Vendors' attention libraries.
#pragma once

#include <utility>
#include <vector>

#include "ops/kernels.h"

namespace megalith::ops {

enum class AttentionLibrary {
  kCudnn,  // through ATen
  kFlash,  // LibTorch's own on NVIDIA; AOTriton or Composable Kernel on AMD
};

// "cuDNN", "flash attention"
const char* name_of(AttentionLibrary library);

// The first that supports a call computes it, else the reference.
using AttentionLibraries = std::vector<AttentionLibrary>;

// Default on a GPU: flash attention, which supports most masks.
struct AttentionKernels {
  Kernels kernels = Kernels::kFused;
  AttentionLibraries libraries = {AttentionLibrary::kFlash};

  AttentionKernels() = default;
  AttentionKernels(Kernels kernels) : kernels(kernels) {}  // NOLINT
  AttentionKernels(Kernels kernels, AttentionLibraries libraries) : kernels(kernels), libraries(std::move(libraries)) {}
};

}  // namespace megalith::ops
