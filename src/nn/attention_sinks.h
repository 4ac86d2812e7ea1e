// A sink of attention: one more key for each head, whose score is a number z of the head and whose value is zero, so
// that a query may attend to nothing.
//
//   p_j = exp(s_j) / (exp(z) + sum_i exp(s_i))
//
// It is added to what attention without it gave, by the log-sum-exp; backward of attention with the new out and
// log-sum-exp then gives the gradients of q, k and v as they are with the sink. So every library and every form of
// context parallelism has it.
// Source: Xiao et al. 2023, arXiv:2309.17453; learned, OpenAI 2025, arXiv:2508.10925 (gpt-oss).
//
// b sequences, s tokens, n query heads, e channels of a value
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

namespace megalith {

// out (b, s, n, e), lse (b, n, s) and sinks (n) wide -> both with the sinks. A query that sees no key gives zeros.
std::pair<at::Tensor, at::Tensor> with_sinks(const at::Tensor& out, const at::Tensor& lse, const at::Tensor& sinks);

// The gradient of the sinks, (n) wide, from dout and what with_sinks() gave.
at::Tensor sink_gradient(const at::Tensor& dout, const at::Tensor& out, const at::Tensor& lse, const at::Tensor& sinks);

}  // namespace megalith
