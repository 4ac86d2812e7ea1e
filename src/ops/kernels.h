// The choice of an operator's implementation; travels in a layer's configuration to every call.
#pragma once

namespace megalith {

enum class Kernels {
  kFused,      // the fastest: vectorised on the CPU, our kernel or LibTorch's on a GPU (ops/operator.h)
  kReference,  // the plain ATen composition, which defines the operator
};

}  // namespace megalith
