// The weight gradient's kernel as a plain function, for operators that fuse it with others.
#pragma once

#include <ATen/core/Tensor.h>

namespace megalith::ops::cpu {

// dw (+)= dy^T x; arguments as in ops/linear, checked.
void linear_wgrad_(const at::Tensor& dw, const at::Tensor& dy, const at::Tensor& x, bool accumulate);

}  // namespace megalith::ops::cpu
