// Attention sinks: an extra key per head, with score z and value zero, so a query may attend to nothing.
//
//   p_j = exp(s_j) / (exp(z) + sum_i exp(s_i))
//
// Applied to the output of plain attention through the log-sum-exp; plain backward with the new out and log-sum-exp
// gives the right gradients of q, k and v. So it works with every library and kind of context parallelism.
// Source: Xiao et al. 2023, arXiv:2309.17453; learned: OpenAI 2025, arXiv:2508.10925 (gpt-oss).
//
// b sequences, s tokens, n query heads, e channels per value
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

namespace megalith {

// out (b, s, n, e), lse (b, n, s), sinks (n) wide -> out and lse with sinks. A query that sees no key gives zeros.
std::pair<at::Tensor, at::Tensor> with_sinks(const at::Tensor& out, const at::Tensor& lse, const at::Tensor& sinks);

// Returns (n) wide, from dout and with_sinks()'s results.
at::Tensor sink_gradient(const at::Tensor& dout, const at::Tensor& out, const at::Tensor& lse, const at::Tensor& sinks);

}  // namespace megalith
