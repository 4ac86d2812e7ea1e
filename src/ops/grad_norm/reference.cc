// The definition of squared_norm, in ATen's operators.
#include "ops/grad_norm/reference.h"

#include <ATen/ATen.h>

#include "ops/library.h"

namespace megalith::ops::reference {

at::Tensor squared_norm(at::TensorList tensors) {
  at::Tensor total = at::zeros({}, tensors[0].options().dtype(at::kDouble));
  for (const at::Tensor& tensor : tensors) total = total + tensor.to(at::kDouble).square().sum();
  return total;
}

}  // namespace megalith::ops::reference

TORCH_LIBRARY_IMPL(megalith, CompositeExplicitAutograd, m) {
  m.impl("squared_norm", TORCH_FN(megalith::ops::reference::squared_norm));
}
