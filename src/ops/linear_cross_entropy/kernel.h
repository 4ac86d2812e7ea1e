// What cross entropy's kernels get, on any device. Free of torch's headers.
#pragma once

#include <cstdint>

#include "ops/cpu/capability.h"
#include "ops/dtype.h"

namespace megalith::ops {

// Rows of logits over columns [vocab_start, vocab_start + columns) of the vocabulary, of which the first `valid` count.
//
// Bytes that must move for each logit of b bytes: b to read for the statistics; b to read and b to write for the
// gradient. cross_entropy reads a row twice and writes it, but the second reading follows the first so closely that it
// comes from a cache.
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

namespace cpu {
MEGALITH_DECLARE_CPU_KERNEL(softmax_statistics, (const LogitRows& a));
MEGALITH_DECLARE_CPU_KERNEL(cross_entropy_gradient, (const LogitRows& a));
MEGALITH_DECLARE_CPU_KERNEL(cross_entropy, (const LogitRows& a));
}  // namespace cpu

// Pointers on the device, and the stream as its native handle.
namespace gpu {
void softmax_statistics(const LogitRows& a, void* stream);
void cross_entropy_gradient(const LogitRows& a, void* stream);
void cross_entropy(const LogitRows& a, void* stream);
}  // namespace gpu

}  // namespace megalith::ops
