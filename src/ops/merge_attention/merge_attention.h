// Merges attention over different keys by log-sum-exp, in place:
//
//   both = log(exp(lse) + exp(more_lse))
//   out  = exp(lse - both) out + exp(more_lse - both) more_out      lse = both
//
// Rows without keys have -inf and zeros, also merged. Sources: arXiv:1805.02867; ring attention: arXiv:2310.01889.
//
// out       (b, s, n, e)  wide
// lse       (b, n, s)     wide
// more_out  (b, s, n, e)  floating
// more_lse  (b, n, s)     wide
// All may be views; out and more_out are contiguous in e.
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
