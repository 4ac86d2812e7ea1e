// Autograd nodes around ops/swiglu, activation and expert_activation.
#pragma once

#include "nn/kept.h"
#include "ops/expert_activation/expert_activation.h"
#include "ops/kernels.h"

namespace megalith {

// x (t, 2f) [gate | up], or (t, f) -> (t, f). SiLU and quick GELU are gated only, squared ReLU plain only.
// is_recomputed: the result keeps only x.
Activation activated(const Activation& x, ops::ExpertActivation activation, Kernels kernels,
                     bool is_recomputed = false);

Activation activated_rows(const at::Tensor& x, const at::Tensor& weights, ops::ExpertActivation activation,
                          Kernels kernels, bool is_recomputed = false);

}  // namespace megalith
