// Attention of a decoder to what an encoder gave: queries of the decoder's tokens, keys and values of the memory. Every
// query sees the whole memory but its padding.
//
// n query heads, g key-value heads, d head dim, as in nn/attention.h. t = b s tokens of the decoder, m = b S of the
// memory. Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.3.
#pragma once

#include <string>

#include "nn/attention.h"
#include "nn/attention_core.h"
#include "nn/linear.h"

namespace megalith {

// What an encoder gave, as the decoder's layers read it.
struct EncoderMemory {
  at::Tensor hidden;   // (m, h), or this rank's (m / tp, h) under sequence parallelism
  at::Tensor lengths;  // (b) int64: tokens from this index on are padding; undefined: none are
  int64_t s = 0;       // S
};

class CrossAttention : public Module {
 public:
  // As SelfAttention's; the names of norms, sinks and one fused linear are not read.
  CrossAttention(const LayerContext& context, const std::string& name, const LayerOptions& options,
                 const AttentionSite& site);

  // x (t, h) -> (t, h); gradient flows to x and to the memory. With a KV cache the memory's keys and values are
  // computed in its first call.
  at::Tensor forward(const Activation& x, const EncoderMemory& memory, const ForwardContext& forward);

 protected:
  double own_forward_flops(const CostShape& shape) const override;
  CostShape shape_of(const Module& child, const CostShape& shape) const override;

 private:
  friend struct CrossAttentionFunction;

  // (m, 2 g d)
  at::Tensor keys_and_values(const EncoderMemory& memory, const ForwardContext& forward);

  int64_t num_heads_, num_kv_heads_, head_dim_;  // of this rank
  int64_t layer_;
  SelectiveRecompute policy_;
  AttentionCore core_;
  Linear q_, kv_, output_;
};

}  // namespace megalith
