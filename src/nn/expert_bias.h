// The biases of the experts' linear layers: to each row that of its expert, where add_bias_linear asks for them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "nn/parameter.h"
#include "ops/kernels.h"

namespace megalith {

// y (n, c) + the bias of each row's expert, times the row's weight.
//
// bias          local experts * w numbers: those of columns first_column to first_column + w. Where an expert is cut
//               over ranks that each have a part of a sum, every rank adds its own columns of the bias to that part.
// weights       (n) wide; undefined: 1
// offsets       (local experts + 1) int64: where the rows of each expert begin, and the end
// Gradient flows to y and weights, and into the Parameter's buffer.
at::Tensor with_expert_bias(const at::Tensor& y, Parameter& bias, int64_t first_column, const at::Tensor& weights,
                            const at::Tensor& offsets, Kernels kernels);

}  // namespace megalith
