// Sum of squares composed from ATen; see ops/grad_norm.
#pragma once

#include <ATen/core/Tensor.h>

namespace megalith::ops::reference {

at::Tensor squared_norm(at::TensorList tensors);  // at least one tensor

}  // namespace megalith::ops::reference
