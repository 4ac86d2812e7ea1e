// Grouped GEMM: the linear layers of many experts, each for the rows sent to it.
//
//   y[i] = w[j] x[i]  for offsets[j] <= i < offsets[j + 1]
//
// e experts, t rows sorted by expert (tokens, once per chosen expert), h in, o out
// x (t, h), y and dy (t, o): one dtype of bf16 | fp16 | fp32 | fp64; they may be strided in t
// w        (e, o, h) or (e * o, h), contiguous, dtype of x
// offsets  (e + 1) int64, rows before each expert: from 0, non-decreasing, to t; experts may be empty. On the CPU for
// CPU
//          tensors; otherwise on the CPU or their device.
// throws   UserError if shapes, dtypes or offsets do not fit (offsets are read only on the CPU)
//
// CPU results are equal to the bit for any number of threads. On GPUs, forward and dgrad of bf16 use ATen's grouped
// product where its widths allow, everything else our kernels, without synchronising unless offsets are in pageable CPU
// memory. Not yet run on a GPU.
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

// dw[j] += dy[rows of j]^T x[rows of j], or = if not accumulating, which zeroes experts without rows. dw (e, o, h) or
// (e * o, h), contiguous, fp32 (fp64 for fp64 inputs), summed without rounding to the inputs' dtype.
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

// True for bf16 with rows of x and of w (e, o, h) at multiples of 16 bytes.
bool takes_grouped_product(const at::Tensor& rows, const at::Tensor& w);

}  // namespace megalith::ops
