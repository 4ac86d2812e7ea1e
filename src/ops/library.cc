// What every operator's registration shares.
#include "ops/library.h"

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>

namespace megalith::ops {

torch::CppFunction not_differentiable() { return torch::autograd::autogradNotImplementedFallback(); }

}  // namespace megalith::ops
