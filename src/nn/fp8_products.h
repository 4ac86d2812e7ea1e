// The three products of a linear layer by the library of a GPU (ops/gpu/blas.h), which multiplies operands of eight
// bits as they are: nothing is widened, and a weight's gradient is added in fp32 where it lies.
//
// Ada and Hopper want the rows of both operands to run along the sum, so two products read transposes (o, h, t: the
// weight's two dims and the tokens):
//
//   forward  y (t, o)   = x (t, h)   w (o, h)^T       as they lie
//   dgrad    dx (t, h)  = dy (t, o)  w^T (h, o)^T     the weight's transpose
//   wgrad_   dw (o, h) += dy^T (o, t)  x^T (h, t)^T   those of gradient and input
//
// A transpose that an operand does not have is made here, from its bytes.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "nn/matmul_recipe.h"

namespace megalith {

// What the eight bits are multiplied by, to have the numbers: of an operand with one scale.
at::Tensor fp8_factor(const at::Tensor& scale);

// (rows, columns) in eight bits as (columns, rows), contiguous.
at::Tensor fp8_transpose(const at::Tensor& values);

// Nothing, and nothing has happened, when the library does not make the product: sizes that are no multiples of 16 (128
// along the sum, of blocks), other dtypes, other devices.
std::optional<at::Tensor> try_fp8_forward(const Operand& x, const Operand& w, const at::Tensor& bias);
std::optional<at::Tensor> try_fp8_dgrad(const Operand& dy, const Operand& w);
bool try_fp8_wgrad_(const at::Tensor& dw, const Operand& dy, const Operand& x, bool accumulate);

}  // namespace megalith
