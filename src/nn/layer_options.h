// All options of a transformer's layers. Structs such as AttentionSite and MlpSite hold what only the model's builder
// knows (names, index, initial deviations).
#pragma once

#include <cstdint>
#include <optional>

#include "config/option.h"
#include "nn/attention_options.h"
#include "nn/convolution_options.h"
#include "nn/expert_options.h"
#include "nn/mlp_options.h"
#include "nn/norm_options.h"
#include "nn/rotary_options.h"
#include "ops/expert_activation/kind.h"

namespace megalith {

// Norms each head, or all channels.
enum class HeadNormScope { kHead, kProjection };

struct LayerOptions : AttentionOptions,
                      LatentAttentionOptions,
                      ConvolutionOptions,
                      RotaryOptions,
                      MlpOptions,
                      NormOptions,
                      ExpertOptions {
  int64_t hidden_size = 0;
  std::optional<int64_t> ffn_hidden_size;  // default: 4 h; gated int(8h/3 / 64) * 64
  bool add_bias_linear = true;             // see has_linear_bias()
  bool disable_bias_linear = false;
  bool add_qkv_bias = false;
  bool qk_layernorm = false;  // with multi_latent_attention of latents
  HeadNormScope qk_layernorm_scope = HeadNormScope::kHead;
  bool qk_l2_norm = false;  // without weights, of rotated heads
  double attention_dropout = 0.1;
  double hidden_dropout = 0.1;
  double init_method_std = 0.02;

  void visit_widths(OptionVisitor& v);
  void visit_biases(OptionVisitor& v);
  void visit_head_norm(OptionVisitor& v);
  void visit_random(OptionVisitor& v);

  bool has_linear_bias() const { return add_bias_linear && !disable_bias_linear; }
  bool has_qkv_bias() const { return add_qkv_bias || has_linear_bias(); }
  int64_t head_dim() const;
  int64_t ffn_size() const;
  // If is_gated() the gates': SiLU or a GELU; otherwise a GELU, ReLU or its square.
  ops::ActivationKind activation() const;
  ops::ExpertActivation expert_activation() const;  // of MLPs too
  int64_t expert_ffn_size() const { return moe_ffn_hidden_size.value_or(ffn_size()); }
  int64_t shared_expert_size() const;  // 0: none
  int64_t query_head_dim() const { return multi_latent_attention ? qk_head_dim + qk_pos_emb_head_dim : head_dim(); }
  int64_t value_head_dim() const { return multi_latent_attention ? v_head_dim : head_dim(); }
};

}  // namespace megalith
