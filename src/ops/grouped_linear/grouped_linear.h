// The linear layers of many experts at once (grouped GEMM): each expert multiplies the rows that were sent to it.
//
//   y[i] = w[j] x[i]  for offsets[j] <= i < offsets[j + 1]
//
// e experts, t rows sorted by expert (tokens, each as often as experts chose it), h in, o out
// x (t, h), y and dy (t, o): one dtype of bf16 | fp16 | fp32 | fp64; they may be strided in t
// w        (e, o, h) or (e * o, h), contiguous, dtype of x
// offsets  (e + 1) int64, rows before each expert: starts with 0, never falls, ends with t. Experts may be empty.
//          For tensors on the CPU it is there too; for others it is on the CPU or on their device.
// throws   UserError when shapes, dtypes or offsets do not fit (offsets are read only on the CPU)
//
// On the CPU, results repeat to the bit for any number of threads. On GPUs, forward and dgrad of bf16 go through ATen's
// grouped product where its widths allow, everything else through our kernels; nothing waits for the device, unless
// offsets lie in pageable memory of the CPU. None of it has been run on a GPU so far.
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

// dw[j] += dy[rows of j]^T x[rows of j], or = when not accumulating, which makes it 0 for an expert without rows.
// dw (e, o, h) or (e * o, h), contiguous, fp32 (fp64 for fp64 inputs): summed without rounding to the inputs' dtype.
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

// Whether ATen's grouped product takes these: bf16, and rows of x and of w (e, o, h) at multiples of 16 bytes.
bool takes_grouped_product(const at::Tensor& rows, const at::Tensor& w);

}  // namespace megalith::ops
