// Merges attention over different keys by log-sum-exp, in place:
//
//   both = log(exp(lse) + exp(more_lse))
//   out  = exp(lse - both) out + exp(more_lse - both) more_out      lse = both
//
// Rows that have seen no key have -inf and zeros, and merge to that again. Used by ring attention. Source: Milakov &
// Gimelshein 2018, arXiv:1805.02867; Liu et al. 2023, arXiv:2310.01889.
//
// b sequences, s tokens, n heads, e channels per head
// out       (b, s, n, e)  wide: fp32, or fp64 for fp64
// lse       (b, n, s)     wide
// more_out  (b, s, n, e)  bf16 | fp16 | fp32 | fp64
// more_lse  (b, n, s)     wide
// All may be views; out and more_out are contiguous in e.
// throws    UserError for other shapes and dtypes
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/operator.h"

namespace megalith::ops {

void merge_attention_(const at::Tensor& out, const at::Tensor& lse, const at::Tensor& more_out,
                      const at::Tensor& more_lse, Kernels kernels = Kernels::kFused);

struct MergeAttentionTable {
  void (*merge_)(const at::Tensor& out, const at::Tensor& lse, const at::Tensor& more_out, const at::Tensor& more_lse);
};
extern const MergeAttentionTable kMergeAttentionReference;
extern const Operator<MergeAttentionTable> kMergeAttention;

}  // namespace megalith::ops
