// Arguments of cross entropy's kernels.
#pragma once

#include <cstdint>

#include "ops/cpu/capability.h"
#include "ops/dtype.h"

namespace megalith::ops {

// Rows of logits over columns [vocab_start, vocab_start + columns) of the vocabulary, of which the first `valid` count.
// Per logit of b bytes the statistics read b, and the gradient reads and writes b; cross_entropy's second reading comes
// from a cache.
struct LogitRows {
  Dtype dtype;
  int64_t rows, columns, valid, stride;
  void* logits;
  const int64_t* labels;
  int64_t vocab_start;

  void *row_max, *sum_exp, *target_logit;  // softmax_statistics, wide

  const void* lse;        // cross_entropy_gradient, wide
  const void* row_scale;  // cross_entropy_gradient and cross_entropy, wide
  void* losses;           // cross_entropy, wide
  bool with_grad;         // cross_entropy: replace the logits by their gradient
};

namespace cpu {
MEGALITH_DECLARE_CPU_KERNEL(softmax_statistics, (const LogitRows& a));
MEGALITH_DECLARE_CPU_KERNEL(cross_entropy_gradient, (const LogitRows& a));
MEGALITH_DECLARE_CPU_KERNEL(cross_entropy, (const LogitRows& a));
}  // namespace cpu

namespace gpu {
void softmax_statistics(const LogitRows& a, void* stream);
void cross_entropy_gradient(const LogitRows& a, void* stream);
void cross_entropy(const LogitRows& a, void* stream);
}  // namespace gpu

}  // namespace megalith::ops
