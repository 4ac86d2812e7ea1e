// Moves tokens to their experts and back: rows sorted by expert, and sums of a token's results.
//
// t tokens with k of e experts each, n rows of experts (t * k without dropping), h columns. A pair is a token and one
// of its experts: pair = token * k + j. Two maps, each other's inverse:
//    source (n)     int64: each sorted row's token; -1 for padding
//    slots  (t, k)  int64: each pair's sorted row; -1 if dropped
// x, y (rows, h): floating; rows may be strided. Maps are contiguous.
// throws   on the CPU also if a map points outside
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

#include "ops/operator.h"

namespace megalith::ops {

// The pairs sorted by expert, then token.
struct ExpertOrder {
  at::Tensor counts;   // (e) int64: each expert's rows
  at::Tensor offsets;  // (e + 1) int64: rows before each expert
  at::Tensor pairs;    // (n) int64: each row's pair
  at::Tensor source;   // (n)
  at::Tensor slots;    // (t, k)
};

// experts (t, k) int64: each token's, below num_experts; keep (t, k) bool: pairs to keep (undefined: all). On the CPU,
// UserError names a nonexistent expert. With `keep`, synchronises.
ExpertOrder sort_by_expert(const at::Tensor& experts, int64_t num_experts, const at::Tensor& keep = {},
                           Kernels kernels = Kernels::kFused);

// Does not synchronise: n is t * k; each dropped pair leaves a padding row after the last expert's.
ExpertOrder sort_all_by_expert(const at::Tensor& experts, int64_t num_experts, const at::Tensor& keep,
                               Kernels kernels = Kernels::kFused);

// Does not synchronise. Pads each expert to rows_per_expert: n is num_experts * rows_per_expert. Further pairs are
// dropped, but in counts.
ExpertOrder sort_and_pad_by_expert(const at::Tensor& experts, int64_t num_experts, const at::Tensor& keep,
                                   int64_t rows_per_expert, Kernels kernels = Kernels::kFused);

// y[i] = x[source[i]], 0 for padding rows: (n, h). x's gradient is combine_tokens(dy, slots).
at::Tensor permute_tokens(const at::Tensor& x, const at::Tensor& source, Kernels kernels = Kernels::kFused);

// out[i] = sum over j of weights[i, j] y[slots[i, j]], in ascending j, wide and rounded once: (t, h). weights (t, k)
// wide, undefined: 1. Dropped pairs add nothing.
at::Tensor combine_tokens(const at::Tensor& y, const at::Tensor& slots, const at::Tensor& weights = {},
                          Kernels kernels = Kernels::kFused);

// With weights: dy[slots[i, j]] = weights[i, j] dout[i], 0 for padding rows, and dweights[i, j] = the sum over h of
// dout[i] y[slots[i, j]], 0 for dropped pairs. (Without, dy is permute_tokens(dout, source).)
std::tuple<at::Tensor, at::Tensor> combine_tokens_backward(const at::Tensor& dout, const at::Tensor& y,
                                                           const at::Tensor& source, const at::Tensor& slots,
                                                           const at::Tensor& weights,
                                                           Kernels kernels = Kernels::kFused);

struct TokenPermutationTable {
  // rows_per_expert -1: without padding, with room for all pairs, as only the device knows how many are kept. Rows
  // after an expert's own are -1 in pairs and source.
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
