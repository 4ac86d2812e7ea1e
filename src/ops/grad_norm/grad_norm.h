// Sum of squares over many tensors, for the global gradient norm: in float64, in a fixed order, so that a run repeats
// to the bit. inf and NaN pass through.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "ops/operator.h"

namespace megalith::ops {

// tensors  any shapes, fp32 | fp64 | bf16, one device, contiguous
// returns  0-d float64 tensor on that device (0 for an empty list, on the CPU)
at::Tensor squared_norm(const std::vector<at::Tensor>& tensors, Kernels kernels = Kernels::kFused);

struct GradNormTable {
  at::Tensor (*squared_norm)(const std::vector<at::Tensor>& tensors);  // at least one
};
extern const GradNormTable kGradNormReference;
extern const Operator<GradNormTable> kGradNorm;

}  // namespace megalith::ops
