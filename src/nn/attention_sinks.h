// Attention sinks: an extra key per head, with score z and value zero, so a query may attend to nothing.
//
//   p_j = exp(s_j) / (exp(z) + sum_i exp(s_i))
//
// Corrects plain attention's results through the log-sum-exp; plain backward with these gives q's, k's and v's
// gradients. Sources: arXiv:2309.17453; learned: arXiv:2508.10925 (gpt-oss).
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

namespace megalith {

// out (b, s, n, e), lse (b, n, s), sinks (n) wide -> out and lse. A query without keys gives zeros.
std::pair<at::Tensor, at::Tensor> with_sinks(const at::Tensor& out, const at::Tensor& lse, const at::Tensor& sinks);

// (n) wide, from dout and with_sinks()'s results.
at::Tensor sink_gradient(const at::Tensor& dout, const at::Tensor& out, const at::Tensor& lse, const at::Tensor& sinks);

}  // namespace megalith
