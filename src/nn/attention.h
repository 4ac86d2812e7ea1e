// Self-attention with grouped key-value heads, split over tp. The fused projection gives [query heads | key heads |
// value heads]. Queries and keys may be normed before rotation, by head or over all. Sources: arXiv:2305.13245
// (groups), arXiv:1909.08053 (tp), arXiv:2302.05442 (head norms).
#pragma once

#include <memory>
#include <string>

#include "nn/attention_core.h"
#include "nn/layer_options.h"
#include "nn/layer_parts.h"
#include "nn/norm.h"
#include "nn/projection_norm.h"

namespace megalith {

struct AttentionNames {
  std::string q = "q_proj", k = "k_proj", v = "v_proj", output = "o_proj";
  std::string fused = {};  // one linear [q | k | v] instead: GPT-2's c_attn
  std::string q_norm = "q_norm", k_norm = "k_norm";
  std::string sinks = "sinks";
};

struct AttentionSite {
  AttentionNames names = {};
  bool is_transposed = false;
  double output_init_std = 0.02;
  int64_t layer = 0;  // also the KV cache's slot
};

class SelfAttention : public Mixer {
 public:
  SelfAttention(const LayerContext& context, const std::string& name, const LayerOptions& options,
                const AttentionSite& site);

  at::Tensor forward(const Activation& x, const ForwardContext& forward, const RotaryAngles& angles) override;

 protected:
  double own_forward_flops(const CostShape& shape) const override;

 private:
  friend struct AttentionFunction;

  at::Tensor norm_heads(const at::Tensor& qkv, const RotaryAngles& angles);
  void add_sinks(const LayerContext& context, const std::string& name, const LayerOptions& options);
  AttentionCore::Call make_call(const ForwardContext& forward) const;

  int64_t head_dim_;
  bool is_rotary_interleaved_;
  int64_t num_heads_, num_kv_heads_;
  SelectiveRecompute policy_;
  Kernels kernels_;
  AttentionCore core_;
  Linear qkv_, output_;
  std::unique_ptr<Norm> q_norm_, k_norm_;
  SoftmaxType softmax_type_;
  std::optional<double> l2_epsilon_;  // for RMS-normed heads
  Parameter* sinks_ = nullptr;        // (n)
  std::unique_ptr<ProjectionNorm> all_q_norm_, all_k_norm_;
};

}  // namespace megalith
