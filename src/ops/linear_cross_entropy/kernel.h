// Cross entropy's kernels.
#pragma once

#include <cstdint>

#include "ops/cpu/capability.h"
#include "ops/dtype.h"

namespace megalith::ops {

// Rows of logits of columns [vocab_start, vocab_start + columns), of which the first `valid` count. Per logit of b
// bytes the statistics read b, and the gradient reads and writes b; cross_entropy reads again from a cache.
struct LogitRows {
  Dtype dtype;
  int64_t rows, columns, valid, stride;
  void* logits;
  const int64_t* labels;
  int64_t vocab_start;

  void *row_max, *sum_exp, *target_logit;  // of softmax_statistics, wide

  const void* lse;        // of cross_entropy_gradient, wide
  const void* row_scale;  // of both others, wide
  void* losses;           // of cross_entropy, wide
  bool with_grad;         // of cross_entropy: replaces logits by gradients
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
