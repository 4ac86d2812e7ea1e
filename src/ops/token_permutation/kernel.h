// The CPU kernels that sum a token's rows and that weigh its gradient; maps as in ops/token_permutation.
#pragma once

#include <cstdint>

#include "ops/cpu/capability.h"
#include "ops/dtype.h"

namespace megalith::ops::cpu {

// out (tokens, columns) = sum over j of weights y
struct CombineTokens {
  Dtype dtype;
  int64_t tokens, k, columns;
  const void* y;
  int64_t y_stride;
  const int64_t* slots;
  const void* weights;  // (tokens, k) wide, or null
  void* out;
};

struct CombineTokensBackward {
  Dtype dtype;
  int64_t tokens, k, columns, rows;
  const void* dout;
  int64_t dout_stride;
  const void* y;
  int64_t y_stride;
  const int64_t *source, *slots;
  const void* weights;
  void* dy;        // (rows, columns)
  void* dweights;  // (tokens, k) wide
};

MEGALITH_DECLARE_CPU_KERNEL(combine_tokens, (const CombineTokens& a));
MEGALITH_DECLARE_CPU_KERNEL(combine_tokens_backward, (const CombineTokensBackward& a));

}  // namespace megalith::ops::cpu
