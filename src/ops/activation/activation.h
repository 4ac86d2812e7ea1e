// Activations of dense MLPs: both forms of GELU, plain or gated, and the squared ReLU.
//
//   y = act(x)           plain
//   y = act(gate) * up   gated, x = [gate | up] along the last dim
//
// In float32; act(gate) is rounded before the product, as if unfused. Sources: arXiv:1606.08415 (GELU),
// arXiv:2002.05202 (gated), arXiv:2109.08668 (squared ReLU).
//
// x        (t, f), or (t, 2f) gated: floating, contiguous
// kind     kGelu, kGeluTanh, or ungated kSquaredRelu
// returns  (t, f), dtype of x
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/expert_activation/kind.h"
#include "ops/operator.h"

namespace megalith::ops {

at::Tensor activation(const at::Tensor& x, ActivationKind kind, bool is_gated, Kernels kernels = Kernels::kFused);

// dy (t, f) -> dx, like x
at::Tensor activation_backward(const at::Tensor& dy, const at::Tensor& x, ActivationKind kind, bool is_gated,
                               Kernels kernels = Kernels::kFused);

struct ActivationTable {
  at::Tensor (*forward)(const at::Tensor& x, ActivationKind kind, bool is_gated);
  at::Tensor (*backward)(const at::Tensor& dy, const at::Tensor& x, ActivationKind kind, bool is_gated);
};
extern const ActivationTable kActivationReference;
extern const Operator<ActivationTable> kActivation;

}  // namespace megalith::ops
