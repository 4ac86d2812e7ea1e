// In ATen's operators.
#include <ATen/ATen.h>

#include "ops/amax.h"
#include "ops/arguments.h"
#include "ops/swiglu/swiglu.h"

namespace megalith::ops {
namespace reference {
namespace {

using at::Tensor;

Tensor swiglu(const Tensor& gate_up, const Tensor& amax) {
  const auto parts = gate_up.chunk(2, -1);
  const Tensor y = at::silu(parts[0]) * parts[1];  // silu computes in float32 and rounds
  raise_amax(amax, y.detach());
  return y;
}

Tensor swiglu_backward(const Tensor& dy, const Tensor& gate_up) {
  const at::ScalarType dtype = gate_up.scalar_type(), wide = wide_dtype(dtype);
  const auto parts = gate_up.chunk(2, -1);
  const Tensor gate = parts[0].to(wide), grad = dy.to(wide);
  const Tensor sigmoid = gate.sigmoid();
  const Tensor dgate = grad * parts[1].to(wide) * sigmoid * (1 + gate * (1 - sigmoid));
  const Tensor dup = grad * at::silu(parts[0]).to(wide);
  return at::cat({dgate, dup}, -1).to(dtype);
}

}  // namespace
}  // namespace reference

constexpr SwigluTable kSwigluReference{.forward = reference::swiglu, .backward = reference::swiglu_backward};

}  // namespace megalith::ops
