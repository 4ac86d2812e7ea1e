// The largest absolute value that an operator takes on its way, for scales of eight bits (ops/fp8_cast).
//
// amax (0-d) wide, not negative: becomes max(amax, |y|), and NaN for good from the first NaN on. Undefined: nobody
// asks. It is the same in any order of elements.
#pragma once

#include <ATen/core/Tensor.h>

namespace megalith::ops {

// UserError when a defined amax is not such a scalar beside x.
void check_amax(const char* op, const at::Tensor& amax, const at::Tensor& x);

// In ATen's operators, on any device; on meta nothing.
void raise_amax(const at::Tensor& amax, const at::Tensor& y);

}  // namespace megalith::ops
