// Which of the vendors' libraries may compute attention on a GPU.
#pragma once

#include <utility>
#include <vector>

#include "ops/kernels.h"

namespace megalith::ops {

enum class AttentionLibrary {
  kCudnn,  // NVIDIA's, through ATen
  kFlash,  // flash attention inside LibTorch: its own on NVIDIA's chips, AOTriton or Composable Kernel on AMD's
};

// "cuDNN", "flash attention"
const char* name_of(AttentionLibrary library);

// The first that takes a call computes it. With none of them the reference does.
using AttentionLibraries = std::vector<AttentionLibrary>;

// How attention is computed; Kernels by themselves mean flash attention on a GPU, which takes most masks.
struct AttentionKernels {
  Kernels kernels = Kernels::kFused;
  AttentionLibraries libraries = {AttentionLibrary::kFlash};

  AttentionKernels() = default;
  AttentionKernels(Kernels kernels) : kernels(kernels) {}  // NOLINT: callers that have nothing to say of libraries
  AttentionKernels(Kernels kernels, AttentionLibraries libraries) : kernels(kernels), libraries(std::move(libraries)) {}
};

}  // namespace megalith::ops
