// Attention by its definition, with the whole score matrix in memory: the oracle of the kernels, and what runs where
// there is none. Arguments as in ops/attention; computed in float32, in float64 for fp64 inputs.
#pragma once

#include <tuple>

#include "ops/attention/attention.h"

namespace megalith::ops::reference {

// Which (query, key) pairs the mask allows, without its bias. Bool, (1 or b, 1, sq, sk).
at::Tensor allowed_pairs(const AttentionMask& mask, int64_t sq, int64_t sk, const at::Device& device);

// What dropout multiplies the probabilities by: 0 or 1 / (1 - p). (b, num_heads, sq, sk), of the given dtype.
at::Tensor dropout_factors(const AttentionDropout& dropout, const AttentionMask& mask, int64_t num_heads, int64_t sk,
                           at::ScalarType dtype);

std::tuple<at::Tensor, at::Tensor> attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                     double scale, const AttentionMask& mask,
                                                     const AttentionDropout& dropout);

AttentionGradients attention_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                                      const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse, double scale,
                                      const AttentionMask& mask, const AttentionDropout& dropout, bool with_dbias);

}  // namespace megalith::ops::reference
