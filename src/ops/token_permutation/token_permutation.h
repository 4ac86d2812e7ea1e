// The way of tokens to their experts and back: rows sorted by expert, and the sums of a token's results.
//
// t tokens, k experts of each, e experts, n rows that experts get (t * k without dropping), h columns
// A pair is a token and one of its experts: pair = token * k + j. Two maps say where it is:
//   source (n)     int64: the token of each sorted row; -1 for a row of padding
//   slots  (t, k)  int64: the sorted row of each pair; -1 for a pair that was dropped
// They are each other's inverse: every row that has a token is the slot of one of that token's pairs.
// x, y (rows, h): bf16 | fp16 | fp32 | fp64; rows may be strided. Maps are contiguous.
// throws   UserError when shapes, dtypes or devices do not fit, and on the CPU when a map points outside
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

#include "ops/operator.h"

namespace megalith::ops {

// The pairs sorted by expert, and by token within an expert.
struct ExpertOrder {
  at::Tensor counts;   // (e) int64: rows of each expert
  at::Tensor offsets;  // (e + 1) int64: rows before each expert
  at::Tensor pairs;    // (n) int64: the pair of each row
  at::Tensor source;   // (n)
  at::Tensor slots;    // (t, k)
};

// experts (t, k) int64: each token's experts, below num_experts; keep (t, k) bool: pairs that are not dropped (all
// without it). On the CPU, UserError names an expert that does not exist. With `keep`, waits for the device.
ExpertOrder sort_by_expert(const at::Tensor& experts, int64_t num_experts, const at::Tensor& keep = {},
                           Kernels kernels = Kernels::kFused);

// The same without waiting: n is t * k, and the rows behind the last expert's, as many as pairs were dropped, are of
// padding.
ExpertOrder sort_all_by_expert(const at::Tensor& experts, int64_t num_experts, const at::Tensor& keep,
                               Kernels kernels = Kernels::kFused);

// The same with rows of padding behind each expert's, up to rows_per_expert: n is num_experts * rows_per_expert. What
// an expert gets beyond them is dropped; counts say how many it would have. Waits for nothing.
ExpertOrder sort_and_pad_by_expert(const at::Tensor& experts, int64_t num_experts, const at::Tensor& keep,
                                   int64_t rows_per_expert, Kernels kernels = Kernels::kFused);

// y[i] = x[source[i]], 0 for rows of padding.  (n, h). The gradient of x is combine_tokens(dy, slots).
at::Tensor permute_tokens(const at::Tensor& x, const at::Tensor& source, Kernels kernels = Kernels::kFused);

// out[i] = sum over j of weights[i, j] y[slots[i, j]], in ascending j, summed in fp32 (fp64 for fp64) and rounded once.
// (t, h); weights (t, k) fp32 (fp64 for fp64), 1 without them. Dropped pairs add nothing.
at::Tensor combine_tokens(const at::Tensor& y, const at::Tensor& slots, const at::Tensor& weights = {},
                          Kernels kernels = Kernels::kFused);

// For weights: dy[slots[i, j]] = weights[i, j] dout[i], 0 for rows of padding, and dweights[i, j] = the sum over h of
// dout[i] y[slots[i, j]], 0 for dropped pairs. (Without weights dy is permute_tokens(dout, source).)
std::tuple<at::Tensor, at::Tensor> combine_tokens_backward(const at::Tensor& dout, const at::Tensor& y,
                                                           const at::Tensor& source, const at::Tensor& slots,
                                                           const at::Tensor& weights,
                                                           Kernels kernels = Kernels::kFused);

struct TokenPermutationTable {
  // rows_per_expert -1: without padding. It leaves room for all pairs: how many are kept is known to the device only.
  // Rows of padding, and those behind the last expert's, are -1 in pairs and source.
  ExpertOrder (*sort_by_expert)(const at::Tensor& experts, const at::Tensor& keep, int64_t num_experts,
                                int64_t rows_per_expert);
  at::Tensor (*permute_tokens)(const at::Tensor& x, const at::Tensor& source);
  at::Tensor (*combine_tokens)(const at::Tensor& y, const at::Tensor& slots, const at::Tensor& weights);
  std::tuple<at::Tensor, at::Tensor> (*combine_tokens_backward)(const at::Tensor& dout, const at::Tensor& y,
                                                                const at::Tensor& source, const at::Tensor& slots,
                                                                const at::Tensor& weights);
};
extern const TokenPermutationTable kTokenPermutationReference;
extern const Operator<TokenPermutationTable> kTokenPermutation;

}  // namespace megalith::ops
