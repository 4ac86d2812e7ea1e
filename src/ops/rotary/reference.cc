// In ATen's operators.
#include <ATen/ATen.h>

#include "ops/arguments.h"
#include "ops/rotary/rotary.h"

namespace megalith::ops {
namespace reference {
namespace {

at::Tensor rotary(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool is_interleaved) {
  const at::ScalarType dtype = x.scalar_type(), wide = wide_dtype(dtype);
  const int64_t half = cos.size(-1), d = x.size(-1);
  // (b or 1, s, 1, r/2), rounded to x's dtype
  const at::Tensor c = cos.to(dtype).to(wide).unsqueeze(2), s = sin.to(dtype).to(wide).unsqueeze(2);
  const at::Tensor turning = x.narrow(-1, 0, 2 * half).to(wide);
  const at::Tensor pairs = is_interleaved ? turning.unflatten(-1, {half, 2}).transpose(-1, -2)
                                          : turning.unflatten(-1, {2, half});  // (b, s, n, 2, r/2)
  const at::Tensor first = pairs.select(-2, 0), second = pairs.select(-2, 1);
  const at::Tensor turned = at::stack({first * c - second * s, second * c + first * s}, is_interleaved ? -1 : -2);
  return at::cat({turned.flatten(-2).to(dtype), x.narrow(-1, 2 * half, d - 2 * half)}, -1);
}

void rotary_backward(const at::Tensor& dy, const at::Tensor& cos, const at::Tensor& sin, bool is_interleaved,
                     const at::Tensor& dx) {
  dx.copy_(rotary(dy, cos, -sin, is_interleaved));
}

}  // namespace
}  // namespace reference

constexpr RotaryTable kRotaryReference{.forward = reference::rotary, .backward = reference::rotary_backward};

}  // namespace megalith::ops
