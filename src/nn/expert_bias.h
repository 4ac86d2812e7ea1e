// The biases of experts' linear layers (add_bias_linear): each row gets its expert's.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "nn/parameter.h"
#include "ops/kernels.h"

namespace megalith {

// y (n, c) + the bias of each row's expert, times the row's weight.
//
// bias     local experts * w numbers, for columns from first_column. If ranks have parts of an expert's sum, each adds
// its
//          own columns of the bias.
// weights  (n) wide; undefined: 1
// offsets  (local experts + 1) int64: where each expert's rows begin, and the end
// Gradient flows to y and weights, and into the Parameter's buffer.
at::Tensor with_expert_bias(const at::Tensor& y, Parameter& bias, int64_t first_column, const at::Tensor& weights,
                            const at::Tensor& offsets, Kernels kernels);

}  // namespace megalith
