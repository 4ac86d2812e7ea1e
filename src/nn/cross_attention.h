// Attention of a decoder's t tokens to an encoder's output: m = b S tokens of memory, without padding. Source:
// arXiv:1706.03762, section 3.2.3.
#pragma once

#include <string>

#include "nn/attention.h"
#include "nn/attention_core.h"
#include "nn/linear.h"

namespace megalith {

struct EncoderMemory {
  at::Tensor hidden;   // (m, h), or (m / tp, h) under sequence parallelism
  at::Tensor lengths;  // (b) int64, without padding; undefined: no padding
  int64_t s = 0;
};

class CrossAttention : public Module {
 public:
  // Ignores the site's norms, sinks and fused linear.
  CrossAttention(const LayerContext& context, const std::string& name, const LayerOptions& options,
                 const AttentionSite& site);

  // x (t, h) -> (t, h). With a KV cache, the memory's keys and values are computed once.
  at::Tensor forward(const Activation& x, const EncoderMemory& memory, const ForwardContext& forward);

 protected:
  double own_forward_flops(const CostShape& shape) const override;
  CostShape shape_of(const Module& child, const CostShape& shape) const override;

 private:
  friend struct CrossAttentionFunction;

  // (m, 2 g d)
  at::Tensor keys_and_values(const EncoderMemory& memory, const ForwardContext& forward);

  int64_t num_heads_, num_kv_heads_, head_dim_;
  int64_t layer_;
  SelectiveRecompute policy_;
  AttentionCore core_;
  Linear q_, kv_, output_;
};

}  // namespace megalith
