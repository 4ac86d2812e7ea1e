// Which implementation of an operator to run; travels in a layer's configuration to every call.
#pragma once

namespace megalith {

enum class Kernels {
  kFused,      // the fastest that is there: vectorised on the CPU, our kernel or LibTorch's on a GPU (ops/operator.h)
  kReference,  // the plain ATen composition, which is the definition of the operator
};

}  // namespace megalith
