// Rotary position embedding (RoPE): rotates pairs of channels by an angle that grows with the position.
//
// half layout (Hugging Face, Megatron)  y[i] = x[i] cos[i] - x[i + r/2] sin[i],
//                                       y[i + r/2] = x[i + r/2] cos[i] + x[i] sin[i]
// interleaved layout (Meta)             the same with the pair (2i, 2i + 1)
//
// Channels from r on pass unchanged. cos and sin are rounded to x's dtype first, as Hugging Face does. Source: Su et
// al. 2021, arXiv:2104.09864.
//
// x         (b, s, n, d)      bf16 | fp16 | fp32 | fp64; only d must be contiguous, so a slice of a fused q|k|v is fine
// cos, sin  (b or 1, s, r/2)  fp32 (fp64 for fp64 inputs), r even and at most d
// returns   (b, s, n, d) contiguous, dtype of x
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/operator.h"

namespace megalith::ops {

at::Tensor rotary(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool is_interleaved = false,
                  Kernels kernels = Kernels::kFused);

// The rotation is orthogonal: the gradient is rotated back.
at::Tensor rotary_backward(const at::Tensor& dy, const at::Tensor& cos, const at::Tensor& sin,
                           bool is_interleaved = false, Kernels kernels = Kernels::kFused);

// Writes into dx (b, s, n, d), a slice of a fused gradient, of which only d must be contiguous.
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
