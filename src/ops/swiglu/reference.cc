// The definition of swiglu, in ATen's operators.
#include "ops/swiglu/reference.h"

#include <ATen/ATen.h>

#include "ops/arguments.h"
#include "ops/library.h"

namespace megalith::ops::reference {

at::Tensor swiglu(const at::Tensor& gate_up) {
  const auto parts = gate_up.chunk(2, -1);
  return at::silu(parts[0]) * parts[1];  // silu computes in float32 and rounds
}

at::Tensor swiglu_backward(const at::Tensor& dy, const at::Tensor& gate_up) {
  const at::ScalarType dtype = gate_up.scalar_type(), wide = wide_dtype(dtype);
  const auto parts = gate_up.chunk(2, -1);
  const at::Tensor gate = parts[0].to(wide), grad = dy.to(wide);
  const at::Tensor sigmoid = gate.sigmoid();
  const at::Tensor dgate = grad * parts[1].to(wide) * sigmoid * (1 + gate * (1 - sigmoid));
  const at::Tensor dup = grad * at::silu(parts[0]).to(wide);
  return at::cat({dgate, dup}, -1).to(dtype);
}

}  // namespace megalith::ops::reference

TORCH_LIBRARY_IMPL(megalith, CompositeExplicitAutograd, m) {
  m.impl("swiglu", TORCH_FN(megalith::ops::reference::swiglu));
  m.impl("swiglu_backward", TORCH_FN(megalith::ops::reference::swiglu_backward));
}
