// What cross entropy's kernels get.
#pragma once

#include <cstdint>

#include "ops/cpu/capability.h"
#include "ops/dtype.h"

namespace megalith::ops::cpu {

// Rows of logits over columns [vocab_start, vocab_start + columns) of the vocabulary, of which the first `valid` count.
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
  bool with_grad;         // cross_entropy: overwrite the logits by their gradient
};
MEGALITH_DECLARE_CPU_KERNEL(softmax_statistics, (const LogitRows& a));
MEGALITH_DECLARE_CPU_KERNEL(cross_entropy_gradient, (const LogitRows& a));
MEGALITH_DECLARE_CPU_KERNEL(cross_entropy, (const LogitRows& a));

}  // namespace megalith::ops::cpu
