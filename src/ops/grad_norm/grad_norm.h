// Sum of squares over many tensors, for the global gradient norm: in float64, in fixed order, reproducible to the bit.
// inf and NaN pass through.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "ops/operator.h"

namespace megalith::ops {

// tensors  any shapes, fp32 | fp64 | bf16, one device, contiguous
// returns  0-d float64 tensor on that device (0 for an empty list, on the CPU)
at::Tensor squared_norm(const std::vector<at::Tensor>& tensors, Kernels kernels = Kernels::kFused);

// Also counts zeros; on a GPU both from one reading of the tensors, 4 bytes per parameter.
// returns  (2) float64 tensor: sum of squares, zeros
at::Tensor squared_norm_and_zeros(const std::vector<at::Tensor>& tensors, Kernels kernels = Kernels::kFused);

struct GradNormTable {  // of at least one tensor
  at::Tensor (*squared_norm)(const std::vector<at::Tensor>& tensors);
  at::Tensor (*squared_norm_and_zeros)(const std::vector<at::Tensor>& tensors);
};
extern const GradNormTable kGradNormReference;
extern const Operator<GradNormTable> kGradNorm;

}  // namespace megalith::ops
