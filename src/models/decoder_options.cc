#include "models/decoder_options.h"

#include <cmath>

namespace megalith {
namespace {

// Output projections start smaller, so that the stream's variance does not grow with depth (Radford et al. 2019).
double output_std(const ModelConfig& config) {
  return config.init_method_std / std::sqrt(2.0 * static_cast<double>(config.num_layers));
}

AttentionOptions attention_options(const ModelConfig& config, const TransformerNames& names, int64_t layer) {
  return {.hidden = config.hidden_size,
          .num_heads = config.num_attention_heads,
          .num_kv_heads = config.num_kv_heads(),
          .head_dim = config.head_dim(),
          .has_qkv_bias = config.add_qkv_bias || config.has_linear_bias(),
          .has_output_bias = config.has_linear_bias(),
          .head_norm = config.qk_layernorm ? std::optional(norm_options(config)) : std::nullopt,
          .dropout = config.attention_dropout,
          .is_rotary_interleaved = config.rotary_interleaved,
          .names = names.attention,
          .is_transposed = names.is_transposed,
          .init_std = config.init_method_std,
          .output_init_std = output_std(config),
          .layer = layer};
}

LatentAttentionOptions latent_options(const ModelConfig& config, int64_t layer) {
  const double scale = yarn_mscale(config.rotary_scaling_factor, config.mscale_all_dim);
  return {.hidden = config.hidden_size,
          .num_heads = config.num_attention_heads,
          .q_rank = config.q_lora_rank.value_or(0),
          .kv_rank = config.kv_lora_rank,
          .nope_dim = config.qk_head_dim,
          .rope_dim = config.qk_pos_emb_head_dim,
          .v_dim = config.v_head_dim,
          .has_latent_norms = config.qk_layernorm,
          .latent_norm_eps = 1e-6,  // Hugging Face's classes take it whatever rms_norm_eps says
          .softmax_factor = scale * scale,
          .dropout = config.attention_dropout,
          .init_std = config.init_method_std,
          .output_init_std = output_std(config),
          .layer = layer};
}

MlpOptions mlp_options(const ModelConfig& config, const TransformerNames& names) {
  return {.hidden = config.hidden_size,
          .ffn = config.ffn_size(),
          .activation = config.activation(),
          .is_gated = config.swiglu,
          .has_bias = config.has_linear_bias(),
          .names = names.mlp,
          .is_transposed = names.is_transposed,
          .init_std = config.init_method_std,
          .output_init_std = output_std(config)};
}

RouterOptions router_options(const ModelConfig& config, int64_t layer) {
  RouterOptions options{.topk = config.moe_router_topk,
                        .score = config.moe_router_score_function,
                        .is_pre_softmax = config.moe_router_pre_softmax,
                        .num_groups = config.moe_router_num_groups.value_or(0),
                        .topk_groups = config.moe_router_group_topk.value_or(0),
                        .group_score = config.moe_router_group_score,
                        .scaling_factor = config.moe_router_topk_scaling_factor.value_or(1),
                        .has_expert_bias = config.moe_router_enable_expert_bias,
                        .balancing = config.moe_router_load_balancing_type,
                        .aux_loss_coeff = config.moe_aux_loss_coeff,
                        .z_loss_coeff = config.moe_z_loss_coeff.value_or(0),
                        .input_jitter_eps = config.moe_input_jitter_eps.value_or(0),
                        .is_balance_forced = config.moe_router_force_load_balancing,
                        .drop_policy = config.moe_token_drop_policy,
                        .init_std = config.init_method_std,
                        .layer = layer};
  if (config.moe_router_dtype == RouterPrecision::kFp32) options.dtype = at::kFloat;
  if (config.moe_router_dtype == RouterPrecision::kFp64) options.dtype = at::kDouble;
  if (config.has_capacity()) options.capacity_factor = config.moe_expert_capacity_factor;
  return options;
}

MoeOptions moe_options(const ModelConfig& config, const TransformerNames& names, int64_t layer) {
  MoeOptions options{.router = router_options(config, layer),
                     .hidden = config.hidden_size,
                     .ffn = config.expert_ffn_size(),
                     .num_experts = *config.num_experts,
                     .activation = {.kind = config.activation(), .is_gated = config.swiglu},
                     .dispatcher = config.dispatcher(),
                     .pads_to_capacity = config.moe_pad_expert_input_to_capacity,
                     .shared_ffn = config.shared_expert_size(),
                     .overlaps_shared_expert = config.moe_shared_expert_overlap,
                     .shared = mlp_options(config, names),
                     .names = names.experts,
                     .init_std = config.init_method_std,
                     .output_init_std = output_std(config)};
  options.shared.is_transposed = false;
  return options;
}

}  // namespace

NormOptions norm_options(const ModelConfig& config) {
  return {.kind = config.normalization == Normalization::kLayerNorm ? NormKind::kLayer : NormKind::kRms,
          .eps = config.norm_epsilon,
          .is_zero_centered = config.apply_layernorm_1p};
}

DecoderLayerOptions decoder_layer_options(const ModelConfig& config, const TransformerNames& names, int64_t layer) {
  DecoderLayerOptions options{.hidden = config.hidden_size,
                              .attention = {},
                              .mlp = mlp_options(config, names),
                              .norm = norm_options(config),
                              .hidden_dropout = config.hidden_dropout,
                              .names = names.layer};
  // Only one of the two: the width of latent heads has nothing to do with hidden_size, which they need not divide.
  if (config.multi_latent_attention) {
    options.attention = latent_options(config, layer);
  } else {
    options.attention = attention_options(config, names, layer);
  }
  if (config.has_experts_at(layer)) options.mlp = moe_options(config, names, layer);
  return options;
}

RotaryOptions rotary_options(const ModelConfig& config) {
  if (config.multi_latent_attention) {
    RotaryOptions options{.dim = config.qk_pos_emb_head_dim, .base = config.rotary_base, .scaling = {}};
    if (config.rope_type == RopeType::kYarn && config.rotary_scaling_factor > 1) {
      options.yarn = YarnScaling{.factor = config.rotary_scaling_factor,
                                 .beta_fast = config.beta_fast,
                                 .beta_slow = config.beta_slow,
                                 .original_max_position_embeddings = config.original_max_position_embeddings,
                                 .mscale = config.mscale,
                                 .mscale_all_dim = config.mscale_all_dim};
    }
    return options;
  }
  RotaryOptions options{.dim = static_cast<int64_t>(static_cast<double>(config.head_dim()) * config.rotary_percent),
                        .base = config.rotary_base,
                        .scaling = {},
                        .yarn = {},
                        .is_interleaved = config.rotary_interleaved};
  if (config.use_rope_scaling) {
    options.scaling = RopeScaling{
        .factor = config.rope_scaling_factor,
        .low_freq_factor = config.rope_scaling_low_freq_factor,
        .high_freq_factor = config.rope_scaling_high_freq_factor,
        .original_max_position_embeddings = config.rope_scaling_original_max_position_embeddings,
    };
  }
  return options;
}

}  // namespace megalith
