// Moves out twice, more_out, and both log-sum-exps, one of them twice.
#pragma once

#include <cstdint>

#include "ops/dtype.h"

namespace megalith::ops {

struct MergeAttention {
  Dtype dtype;  // of more_out
  int64_t batch, tokens, heads, channels;
  void* out;               // wide
  int64_t out_strides[3];  // batch, token, head
  void* lse;               // wide
  int64_t lse_strides[3];
  const void* more_out;
  int64_t more_out_strides[3];
  const void* more_lse;  // wide
  int64_t more_lse_strides[3];
};

namespace gpu {
void merge_attention(const MergeAttention& a, void* stream);
}  // namespace gpu

}  // namespace megalith::ops
