// Chooses an operator's implementation; travels in a layer's configuration.
#pragma once

namespace megalith {

enum class Kernels {
  kFused,      // vectorised on the CPU, our kernel or LibTorch's on a GPU (ops/operator.h)
  kReference,  // ATen's composition, which defines the operator
};

}  // namespace megalith
