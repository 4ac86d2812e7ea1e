// The activation between an expert's linear layers, times each row's router weight.
//
//   y = act(x) * weight                                     plain
//   y = act(gate) * up * weight,  x = [gate | up]           gated, along the last dim
//   y = act(min(gate, l)) * (min(max(up, -l), l) + offset) * weight        quick GELU, with limits l
//
// Wide, rounded once; gated forms round act(gate) before the product, like ops/swiglu. Weights apply before the second
// layer, as in Megatron.
//
// x        (t, f), or (t, 2f) gated: floating, contiguous
// weights  (t) wide, contiguous; undefined: 1
// returns  (t, f), dtype of x
// Sources: arXiv:2002.05202 (gated), arXiv:1606.08415 (GELU), arXiv:2109.08668 (squared ReLU), arXiv:2508.10925 (limits
// and offset).
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

#include "ops/expert_activation/kind.h"
#include "ops/operator.h"

namespace megalith::ops {

at::Tensor expert_activation(const at::Tensor& x, const at::Tensor& weights = {}, ExpertActivation activation = {},
                             Kernels kernels = Kernels::kFused);

// dy (t, f) -> dx, like x, and dweights (t), empty without weights.
std::tuple<at::Tensor, at::Tensor> expert_activation_backward(const at::Tensor& dy, const at::Tensor& x,
                                                              const at::Tensor& weights = {},
                                                              ExpertActivation activation = {},
                                                              Kernels kernels = Kernels::kFused);

struct ExpertActivationTable {
  at::Tensor (*forward)(const at::Tensor& x, const at::Tensor& weights, ExpertActivation activation);
  std::tuple<at::Tensor, at::Tensor> (*backward)(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weights,
                                                 ExpertActivation activation);
};
extern const ExpertActivationTable kExpertActivationReference;
extern const Operator<ExpertActivationTable> kExpertActivation;

}  // namespace megalith::ops
