// Grouped GEMM: many experts' linear layers, each for the rows sent to it.
//
//   y[i] = w[j] x[i]  for offsets[j] <= i < offsets[j + 1]
//
// e experts, t rows sorted by expert, h in, o out
//
// x, y, dy (t, h), (t, o), (t, o): one floating dtype; may be strided in t
// w        (e, o, h) or (e * o, h), contiguous, dtype of x
// offsets  (e + 1) int64, rows before each expert: from 0 to t, experts may be empty; on the CPU or the tensors' device
// throws   also for other offsets, if they are on the CPU
//
// The number of threads changes no result. On GPUs, bf16's forward and dgrad use ATen's grouped product where widths
// allow, everything else our kernels; only offsets in pageable CPU memory synchronise. Not yet run on a GPU.
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/operator.h"

namespace megalith::ops {

// (t, o)
at::Tensor grouped_linear_forward(const at::Tensor& x, const at::Tensor& w, const at::Tensor& offsets,
                                  Kernels kernels = Kernels::kFused);

// dx[i] = dy[i] w[j]  (t, h)
at::Tensor grouped_linear_dgrad(const at::Tensor& dy, const at::Tensor& w, const at::Tensor& offsets,
                                Kernels kernels = Kernels::kFused);

// dw[j] (+)= dy[rows of j]^T x[rows of j]; not accumulating zeroes experts without rows. dw (e, o, h) or (e * o, h),
// contiguous, wide, summed without rounding.
void grouped_linear_wgrad_(const at::Tensor& dw, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& offsets,
                           bool accumulate = true, Kernels kernels = Kernels::kFused);

// w and dw are (e, o, h).
struct GroupedLinearTable {
  at::Tensor (*forward)(const at::Tensor& x, const at::Tensor& w, const at::Tensor& offsets);
  at::Tensor (*dgrad)(const at::Tensor& dy, const at::Tensor& w, const at::Tensor& offsets);
  void (*wgrad_)(const at::Tensor& dw, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& offsets,
                 bool accumulate);
};
extern const GroupedLinearTable kGroupedLinearReference, kGroupedLinearCpu, kGroupedLinearMeta, kGroupedLinearGpuAten;
extern const Operator<GroupedLinearTable> kGroupedLinear;

// bf16 with rows of x and w (e, o, h) at multiples of 16 bytes.
bool takes_grouped_product(const at::Tensor& rows, const at::Tensor& w);

}  // namespace megalith::ops
