#include "ops/amax.h"

#include <ATen/ATen.h>

#include "ops/arguments.h"

namespace megalith::ops {

void check_amax(const char* op, const at::Tensor& amax, const at::Tensor& x) {
  if (amax.defined()) check_dense(op, {"amax", amax}, {}, wide_dtype(x.scalar_type()), {"x", x});
}

void raise_amax(const at::Tensor& amax, const at::Tensor& y) {
  if (!amax.defined() || y.numel() == 0 || y.is_meta()) return;
  amax.copy_(at::maximum(amax, y.abs().amax().to(amax.scalar_type())));
}

}  // namespace megalith::ops
