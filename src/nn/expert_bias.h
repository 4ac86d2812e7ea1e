// Biases of experts' linears (add_bias_linear).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "nn/parameter.h"
#include "ops/kernels.h"

namespace megalith {

// y (n, c) + each row's expert bias times its weight.
//
// bias     local experts * w, for columns from first_column; etp ranks add different columns
// weights  (n) wide; undefined: 1
// offsets  (local experts + 1) int64: where experts' rows begin, and the end
// Differentiable in y and weights; the bias' gradient goes to its Parameter.
at::Tensor with_expert_bias(const at::Tensor& y, Parameter& bias, int64_t first_column, const at::Tensor& weights,
                            const at::Tensor& offsets, Kernels kernels);

}  // namespace megalith
