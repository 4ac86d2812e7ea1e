// The largest absolute value that an operator meets, for eight-bit scales (ops/fp8_cast).
//
// amax (0-d) wide, not negative: becomes max(amax, |y|); NaN is sticky. Undefined: not computed.
#pragma once

#include <ATen/core/Tensor.h>

namespace megalith::ops {

// UserError unless undefined or such a scalar on x's device.
void check_amax(const char* op, const at::Tensor& amax, const at::Tensor& x);

// On any device; nothing on meta.
void raise_amax(const at::Tensor& amax, const at::Tensor& y);

}  // namespace megalith::ops
