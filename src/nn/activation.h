// The activations of MLPs and of experts, as nodes of the graph around ops/swiglu, ops/gelu and ops/expert_activation.
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/expert_activation/expert_activation.h"
#include "ops/kernels.h"

namespace megalith {

// x (t, 2f), [gate | up], or (t, f), up only -> (t, f). SiLU comes only gated, squared ReLU only plain.
at::Tensor activated(const at::Tensor& x, ops::ActivationKind activation, bool is_gated, Kernels kernels);

// Arguments as in ops/expert_activation; gradient flows to x and weights.
at::Tensor activated_rows(const at::Tensor& x, const at::Tensor& weights, ops::ExpertActivation activation,
                          Kernels kernels);

}  // namespace megalith
