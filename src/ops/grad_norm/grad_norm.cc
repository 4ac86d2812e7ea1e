// Interface of squared_norm: checks the tensors, then calls the dispatcher or the reference.
#include "ops/grad_norm/grad_norm.h"

#include <ATen/ATen.h>

#include "ops/arguments.h"
#include "ops/grad_norm/reference.h"
#include "ops/library.h"

TORCH_LIBRARY_FRAGMENT(megalith, m) { m.def("squared_norm(Tensor[] tensors) -> Tensor"); }

namespace megalith::ops {

at::Tensor squared_norm(const std::vector<at::Tensor>& tensors, Kernels kernels) {
  if (tensors.empty()) return at::zeros({}, at::kDouble);
  for (const at::Tensor& tensor : tensors) {
    check_floating("squared_norm", {"tensor", tensor});
    check_contiguous("squared_norm", {"tensor", tensor});
    check_devices("squared_norm", {{"the first tensor", tensors[0]}, {"tensor", tensor}});
  }
  if (kernels == Kernels::kReference) return reference::squared_norm(tensors);
  static const auto op = find_op<at::Tensor(at::TensorList)>("megalith::squared_norm");
  return op.call(tensors);
}

}  // namespace megalith::ops
