// Multi-head latent attention: keys and values come from a narrow latent per token; a few extra channels carry
// positions, their key shared by all heads.
//
//   q      = W_q x,  or  W_qb norm(W_qa x)                         n heads of [nope | rope]
//   c, k_r = W_kva x                                               c (kv_lora_rank), k_r (rope)
//   k, v   = W_kvb norm(c)                                         each head's [nope | v]
//   out    = W_o attention([q_nope | R q_rope], [k_nope | R k_r], v; softmax scale)
//
// Every tp rank projects down to its tokens' latents; projections up are split by heads. Under sequence parallelism k_r
// is gathered, its gradient summed over tp.
//
// Backward keeps the latents, q, k, v and what attention keeps. SelectiveRecompute::core_attention drops the last,
// latent_up all but the latents and attention's result; both keep only the latents.
//
// d_n, d_r, d_v: channels of nope, rope and value. Source: arXiv:2405.04434 (DeepSeek-V2).
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "nn/attention_core.h"
#include "nn/layer_options.h"
#include "nn/layer_parts.h"
#include "nn/norm.h"

namespace megalith {

struct LatentAttentionSite {
  bool is_rotary_interleaved = true;  // pairs (2i, 2i + 1), as in published weights
  double output_init_std = 0.02;
  int64_t layer = 0;  // also the KV cache's slot
};

class LatentAttention : public Mixer {
 public:
  LatentAttention(const LayerContext& context, const std::string& name, const LayerOptions& options,
                  const LatentAttentionSite& site);

  at::Tensor forward(const Activation& x, const ForwardContext& forward, const RotaryAngles& angles) override;

 protected:
  double own_forward_flops(const CostShape& shape) const override;

 private:
  friend struct LatentCoreFunction;
  struct Call;  // attention's inputs beside projections
  struct Projections {
    at::Tensor q;    // (t, n (d_n + d_r)), not rotated
    at::Tensor kv;   // (t, n (d_n + d_v))
    at::Tensor key;  // (t, d_r): shared by heads, not rotated
    // Null: kept.
    std::function<Projections()> again = {};
  };

  Projections project_up(const at::Tensor& q, const at::Tensor& latent, const at::Tensor& rows);
  Activation normed(Norm& norm, const Activation& x) const;
  Activation attend(const Projections& projections, const Call& call) const;
  at::Tensor attend_with_cache(const Projections& projections, const ForwardContext& forward, const Call& call) const;
  at::Tensor share_key(const at::Tensor& key) const;

  int64_t kv_rank_, nope_dim_, rope_dim_, v_dim_;
  bool is_rotary_interleaved_;
  std::string name_;
  Group* tp_;
  bool is_sequence_parallel_;
  int64_t num_heads_;
  SelectiveRecompute policy_;
  Kernels kernels_;
  AttentionCore core_;
  std::unique_ptr<Linear> q_, q_down_, q_up_;
  std::unique_ptr<Norm> q_norm_, kv_norm_;
  Linear kv_down_, kv_up_, output_;
};

}  // namespace megalith
