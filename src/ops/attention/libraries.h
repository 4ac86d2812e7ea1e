// The vendors' libraries that may compute attention on a GPU.
#pragma once

#include <utility>
#include <vector>

#include "ops/kernels.h"

namespace megalith::ops {

enum class AttentionLibrary {
  kCudnn,  // NVIDIA's, through ATen
  kFlash,  // LibTorch's flash attention: its own on NVIDIA's chips, AOTriton or Composable Kernel on AMD's
};

// "cuDNN", "flash attention"
const char* name_of(AttentionLibrary library);

// The first that supports a call computes it; otherwise the reference does.
using AttentionLibraries = std::vector<AttentionLibrary>;

// Kernels by themselves mean flash attention on a GPU, which supports most masks.
struct AttentionKernels {
  Kernels kernels = Kernels::kFused;
  AttentionLibraries libraries = {AttentionLibrary::kFlash};

  AttentionKernels() = default;
  AttentionKernels(Kernels kernels) : kernels(kernels) {}  // NOLINT: for callers without a choice of libraries
  AttentionKernels(Kernels kernels, AttentionLibraries libraries) : kernels(kernels), libraries(std::move(libraries)) {}
};

}  // namespace megalith::ops
