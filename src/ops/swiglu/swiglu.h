// The gated activation of Llama's MLP: y = silu(gate) * up, gate_up = [gate | up] along the last dim.
//
// Computed in float32, silu(gate) rounded to the input's dtype before the product, as if unfused. Source:
// arXiv:2002.05202 (GLU variants).
//
// gate_up  (t, 2f)  floating, contiguous
// amax     (0-d)    wide, or undefined: raised to the largest |y| (ops/amax.h)
// returns  (t, f)   same dtype
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/operator.h"

namespace megalith::ops {

at::Tensor swiglu(const at::Tensor& gate_up, Kernels kernels = Kernels::kFused, const at::Tensor& amax = {});

// dy (t, f) -> (t, 2f)
at::Tensor swiglu_backward(const at::Tensor& dy, const at::Tensor& gate_up, Kernels kernels = Kernels::kFused);

struct SwigluTable {
  at::Tensor (*forward)(const at::Tensor& gate_up, const at::Tensor& amax);
  at::Tensor (*backward)(const at::Tensor& dy, const at::Tensor& gate_up);
};
extern const SwigluTable kSwigluReference;
extern const Operator<SwigluTable> kSwiglu;

}  // namespace megalith::ops
