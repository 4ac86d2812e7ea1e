// Rotary position embedding (RoPE): rotates pairs of channels by angles that grow with the position.
//
// half layout (Hugging Face, Megatron)  y[i] = x[i] cos[i] - x[i + r/2] sin[i],
//                                       y[i + r/2] = x[i + r/2] cos[i] + x[i] sin[i]
// interleaved layout (Meta)             the same with the pair (2i, 2i + 1)
//
// Channels from r on pass unchanged. cos and sin are rounded to x's dtype first, as in Hugging Face's. Source:
// arXiv:2104.09864 (RoFormer).
//
// x         (b, s, n, d)      floating; only d must be contiguous (slices of a fused q|k|v are)
// cos, sin  (b or 1, s, r/2)  wide, r even and at most d
// returns   (b, s, n, d) contiguous, dtype of x
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/operator.h"

namespace megalith::ops {

at::Tensor rotary(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool is_interleaved = false,
                  Kernels kernels = Kernels::kFused);

// Rotates the gradient back.
at::Tensor rotary_backward(const at::Tensor& dy, const at::Tensor& cos, const at::Tensor& sin,
                           bool is_interleaved = false, Kernels kernels = Kernels::kFused);

// Into dx (b, s, n, d), a slice of a fused gradient; only d must be contiguous.
void rotary_backward_into(const at::Tensor& dy, const at::Tensor& cos, const at::Tensor& sin, bool is_interleaved,
                          const at::Tensor& dx, Kernels kernels = Kernels::kFused);

struct RotaryTable {
  at::Tensor (*forward)(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool is_interleaved);
  void (*backward)(const at::Tensor& dy, const at::Tensor& cos, const at::Tensor& sin, bool is_interleaved,
                   const at::Tensor& dx);
};
extern const RotaryTable kRotaryReference;
extern const Operator<RotaryTable> kRotary;

}  // namespace megalith::ops
