// A linear layer's three products by the GPU's library (ops/gpu/blas.h), which multiplies eight-bit operands directly
// and accumulates weight gradients in fp32 in place.
//
// Ada and Hopper want the rows of both operands along the sum, so two products read transposes, made here if missing
// (o, h, t: the weight's two dims and the tokens):
//
//   forward  y (t, o)   = x (t, h)   w (o, h)^T       as stored
//   dgrad    dx (t, h)  = dy (t, o)  w^T (h, o)^T     transposed weight
//   wgrad_   dw (o, h) += dy^T (o, t)  x^T (h, t)^T   transposed gradient and input
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "nn/matmul_recipe.h"

namespace megalith {

// Turns eight-bit values into numbers; for operands with one scale.
at::Tensor fp8_factor(const at::Tensor& scale);

// (rows, columns) in eight bits as (columns, rows), contiguous.
at::Tensor fp8_transpose(const at::Tensor& values);

// Return nothing, without side effects, if the library does not support the product: sizes not multiples of 16 (for
// blocks, 128 along the sum), other dtypes, other devices.
std::optional<at::Tensor> try_fp8_forward(const Operand& x, const Operand& w, const at::Tensor& bias);
std::optional<at::Tensor> try_fp8_dgrad(const Operand& dy, const Operand& w);
bool try_fp8_wgrad_(const at::Tensor& dw, const Operand& dy, const Operand& x, bool accumulate);

}  // namespace megalith
