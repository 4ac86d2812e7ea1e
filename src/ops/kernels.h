// Which implementation of an operator to run; travels in a layer's configuration to every call.
#pragma once

namespace megalith {

enum class Kernels {
  kFused,      // through the dispatcher: vectorised on the CPU, a kernel on the GPU, the reference where none exists
  kReference,  // the plain ATen composition, which is the definition of the operator
};

}  // namespace megalith
