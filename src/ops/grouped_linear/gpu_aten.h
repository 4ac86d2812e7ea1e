// The experts' products through ATen's grouped GEMM, which is what GPUs run in bf16; see ops/grouped_linear. Not yet
// run on a GPU: tests run it on the CPU, where ATen composes it.
#pragma once

#include <ATen/core/Tensor.h>

namespace megalith::ops::gpu {

// Whether ATen's product takes these: bf16, and rows of x and of w (e, o, h) at multiples of 16 bytes.
bool takes_grouped_product(const at::Tensor& rows, const at::Tensor& w);

at::Tensor grouped_linear_forward(const at::Tensor& x, const at::Tensor& w, const at::Tensor& offsets);
at::Tensor grouped_linear_dgrad(const at::Tensor& dy, const at::Tensor& w, const at::Tensor& offsets);

}  // namespace megalith::ops::gpu
