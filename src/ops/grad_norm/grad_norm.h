// Sum of squares over many tensors: in float64, in fixed order, reproducible to the bit; inf and NaN pass through.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "ops/operator.h"

namespace megalith::ops {

// tensors  fp32 | fp64 | bf16, one device, contiguous
// returns  0-d float64 on that device (0 for an empty list, on the CPU)
at::Tensor squared_norm(const std::vector<at::Tensor>& tensors, Kernels kernels = Kernels::kFused);

// returns  (2) float64: sum of squares, number of zeros; on a GPU from one reading
at::Tensor squared_norm_and_zeros(const std::vector<at::Tensor>& tensors, Kernels kernels = Kernels::kFused);

struct GradNormTable {  // of one tensor or more
  at::Tensor (*squared_norm)(const std::vector<at::Tensor>& tensors);
  at::Tensor (*squared_norm_and_zeros)(const std::vector<at::Tensor>& tensors);
};
extern const GradNormTable kGradNormReference;
extern const Operator<GradNormTable> kGradNorm;

}  // namespace megalith::ops
