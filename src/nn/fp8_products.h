// A linear layer's products of eight-bit operands by the GPU's library (ops/gpu/blas.h).
//
// Ada and Hopper want both operands' rows along the sum, so two products read transposes, made if missing (w (o, h), t
// tokens):
//
//   forward  y (t, o)   = x (t, h)   w (o, h)^T       as stored
//   dgrad    dx (t, h)  = dy (t, o)  w^T (h, o)^T     transposed weight
//   wgrad_   dw (o, h) += dy^T (o, t)  x^T (h, t)^T   transposed gradient and input, summed in fp32
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "nn/matmul_recipe.h"

namespace megalith {

// For operands with one scale.
at::Tensor fp8_factor(const at::Tensor& scale);

// (rows, columns) -> (columns, rows), contiguous.
at::Tensor fp8_transpose(const at::Tensor& values);

// Nothing, without side effects, if the library lacks the product: sizes not multiples of 16 (blocks: 128 along the
// sum), other dtypes or devices.
std::optional<at::Tensor> try_fp8_forward(const Operand& x, const Operand& w, const at::Tensor& bias);
std::optional<at::Tensor> try_fp8_dgrad(const Operand& dy, const Operand& w);
bool try_fp8_wgrad_(const at::Tensor& dw, const Operand& dy, const Operand& x, bool accumulate);

}  // namespace megalith
