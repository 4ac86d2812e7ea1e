// Self-attention with grouped key-value heads: fused q|k|v projection, rotary embedding, attention, output projection.
//
// n query heads, g kv heads, d head dim; under tensor parallelism a rank holds n/tp and g/tp of them, and its fused
// projection gives [its query heads | its key heads | its value heads]. Query and key heads may be normed before
// rotation, each by itself or all of a token together.
//
// Source: Ainslie et al. 2023, arXiv:2305.13245; the parallel form is Shoeybi et al. 2019, arXiv:1909.08053; norms of
// heads are Dehghani et al. 2023, arXiv:2302.05442.
#pragma once

#include <memory>
#include <string>

#include "nn/attention_core.h"
#include "nn/layer_options.h"
#include "nn/layer_parts.h"
#include "nn/norm.h"
#include "nn/projection_norm.h"

namespace megalith {

// The names of the canonical linears below the layer's name.
struct AttentionNames {
  std::string q = "q_proj", k = "k_proj", v = "v_proj", output = "o_proj";
  std::string fused = {};  // one linear that holds [q | k | v] in the place of the three: GPT-2's c_attn
  std::string q_norm = "q_norm", k_norm = "k_norm";
  std::string sinks = "sinks";  // the parameter itself
};

// What only the builder of a model knows.
struct AttentionSite {
  AttentionNames names = {};
  bool is_transposed = false;  // the canonical weights are (in, out), as GPT-2's
  double output_init_std = 0.02;
  int64_t layer = 0;  // number in the whole model: the slot of the KV cache
};

class SelfAttention : public AttentionLayer {
 public:
  // name  canonical: "model.layers.0.self_attn", with AttentionSite::names below it
  // UserError when tp does not divide the heads or the kv heads, and when the options do not fit one another.
  SelfAttention(const LayerContext& context, const std::string& name, const LayerOptions& options,
                const AttentionSite& site);

  // Gradient flows to forward.mask.bias too, where there is one.
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
  int64_t num_heads_, num_kv_heads_;  // of this rank
  SelectiveRecompute policy_;
  Kernels kernels_;
  AttentionCore core_;
  Linear qkv_, output_;
  std::unique_ptr<Norm> q_norm_, k_norm_;  // null without norms of heads
  SoftmaxType softmax_type_;
  std::optional<double> l2_epsilon_;  // where heads are divided by their root mean square
  Parameter* sinks_ = nullptr;        // (n) of this rank, where they are learned
  std::unique_ptr<ProjectionNorm> all_q_norm_, all_k_norm_;
};

}  // namespace megalith
