#include "models/architecture.h"

#include "models/layer_pattern.h"

namespace megalith {
namespace {

template <typename Part>
void reset(ModelConfig& config) {
  static_cast<Part&>(config) = Part();
}

void reset_rope_scaling(ModelConfig& config) {
  const ModelConfig defaults;
  config.rope_scaling_factor = defaults.rope_scaling_factor;
  config.rope_scaling_low_freq_factor = defaults.rope_scaling_low_freq_factor;
  config.rope_scaling_high_freq_factor = defaults.rope_scaling_high_freq_factor;
  config.rope_scaling_original_max_position_embeddings = defaults.rope_scaling_original_max_position_embeddings;
  config.rope_scaling_type = defaults.rope_scaling_type;
  config.rope_scaling_beta_fast = defaults.rope_scaling_beta_fast;
  config.rope_scaling_beta_slow = defaults.rope_scaling_beta_slow;
  config.rope_scaling_truncate = defaults.rope_scaling_truncate;
  config.rope_scaling_attention_factor.reset();
}

// Resets options of rules not taken; writes out the attention factor.
void simplify_rope_scaling(ModelConfig& config) {
  const ModelConfig other;
  if (config.use_rope_scaling && config.rope_scaling_type == RopeScalingType::kYarn) {
    config.rope_scaling_low_freq_factor = other.rope_scaling_low_freq_factor;
    config.rope_scaling_high_freq_factor = other.rope_scaling_high_freq_factor;
    config.rope_scaling_attention_factor = config.rope_scaling_multiplier();
    return;
  }
  config.rope_scaling_beta_fast = other.rope_scaling_beta_fast;
  config.rope_scaling_beta_slow = other.rope_scaling_beta_slow;
  config.rope_scaling_truncate = other.rope_scaling_truncate;
  config.rope_scaling_attention_factor.reset();
}

void fill_in_windowed_layers(ModelConfig& full) {
  full.window_attn_skip_freq = window_attn_skip_freq_text(full.layers_with_window());
  if (full.num_layers > 0 && !full.has_windows()) {
    full.window_size.clear();
    full.window_attn_skip_freq.clear();
    full.rotary_base_local.reset();
  }
}

// Writes out defaults that follow from other options, and older spellings in the newer one.
ModelConfig filled_in(const ModelConfig& given) {
  const ModelConfig config = as_read(given);
  ModelConfig full = config;
  full.ffn_hidden_size = config.ffn_size();
  if (config.is_diffusion()) return full;
  if (!config.multi_latent_attention) {
    full.kv_channels = config.head_dim();
    if (config.query_pre_attn_scalar == static_cast<double>(config.head_dim())) full.query_pre_attn_scalar.reset();
  }
  full.num_query_groups = config.num_kv_heads();
  full.group_query_attention = config.num_kv_heads() != config.num_attention_heads;
  const ModelConfig defaults;
  full.use_rotary_position_embeddings = defaults.use_rotary_position_embeddings;
  full.disable_bias_linear = defaults.disable_bias_linear;
  full.position_embedding_type = config.position_embedding();
  full.add_bias_linear = config.has_linear_bias();
  if (!config.multi_latent_attention) reset<LatentAttentionOptions>(full);
  if (config.num_convolutions() == 0) reset<ConvolutionOptions>(full);
  if (config.has_experts()) {
    full.moe_ffn_hidden_size = config.expert_ffn_size();
    full.moe_shared_expert_intermediate_size = config.shared_expert_size();
    full.num_shared_experts.reset();
    full.moe_layer_freq = normalised_moe_layer_freq(config.moe_layer_freq, config.num_all_layers());
  } else {
    reset<ExpertOptions>(full);
  }
  if (config.has_encoder()) full.decoder_num_layers = config.num_decoder_layers();
  if (full.position_embedding_type != PositionEmbedding::kRelative) {
    full.relative_attention_num_buckets = defaults.relative_attention_num_buckets;
    full.relative_attention_max_distance = defaults.relative_attention_max_distance;
  }
  full.mtp_num_layers = config.num_prediction_modules();
  full.causal = config.is_causal();
  full.num_token_types.reset();
  if (config.token_types() > 0) full.num_token_types = config.token_types();
  full.window_size.clear();
  if (const int64_t window = config.attention_window(); window > 0) {
    full.window_size = {window - 1, config.is_causal() ? 0 : window - 1};
    fill_in_windowed_layers(full);
  }
  full.no_rope_freq = no_rope_freq_text(config.layers_without_rotation());
  if (full.position_embedding_type != PositionEmbedding::kRope) {
    full.rotary_base = defaults.rotary_base;
    full.rotary_seq_len_interpolation_factor = defaults.rotary_seq_len_interpolation_factor;
    full.rotary_base_local.reset();
    full.rotary_percent = defaults.rotary_percent;
    full.rotary_interleaved = defaults.rotary_interleaved;
  }
  if (!config.use_rope_scaling) reset_rope_scaling(full);
  return full;
}

void simplify_latent_attention(ModelConfig& config) {
  const LatentAttentionOptions defaults;
  config.kv_channels.reset();
  config.use_rope_scaling = false;
  config.rotary_seq_len_interpolation_factor = 1;
  reset_rope_scaling(config);
  const bool is_stretched = config.rotary_scaling_factor > 1;
  if (!is_stretched) config.mscale_all_dim = defaults.mscale_all_dim;
  if (config.rope_type == RopeType::kYarn && is_stretched) return;
  // Without YaRN the tables are plain, but mscale_all_dim still scales the softmax.
  config.rope_type = RopeType::kRope;
  config.mscale = defaults.mscale;
  config.beta_fast = defaults.beta_fast;
  config.beta_slow = defaults.beta_slow;
  config.original_max_position_embeddings = defaults.original_max_position_embeddings;
  if (config.mscale_all_dim == 0) config.rotary_scaling_factor = defaults.rotary_scaling_factor;
}

void simplify_router(ModelConfig& config) {
  const ExpertOptions defaults;
  config.moe_router_dtype = defaults.moe_router_dtype;  // precision, not meaning
  if (config.moe_router_score_function == RouterScore::kSigmoid) config.moe_router_pre_softmax = false;
  if (config.moe_router_topk_scaling_factor == 1.0) config.moe_router_topk_scaling_factor.reset();
  const int64_t groups = config.moe_router_num_groups.value_or(1);
  if (groups > 1 && config.moe_router_group_topk < groups) {
    const bool is_same = config.moe_router_topk / config.moe_router_group_topk.value_or(groups) == 2;
    if (config.moe_router_group_score == GroupScore::kTwo && is_same)
      config.moe_router_group_score = GroupScore::kTopSum;
    return;
  }
  config.moe_router_num_groups.reset();
  config.moe_router_group_topk.reset();
  config.moe_router_group_score = defaults.moe_router_group_score;
}

// Resets options that others make meaningless.
ModelConfig simplified(ModelConfig config) {
  if (config.is_diffusion()) return config;
  const bool is_tanh = config.activation() == ops::ActivationKind::kGeluTanh;
  // A BERT's head reads only openai_gelu.
  const bool is_head_other = config.model_type == ModelType::kBert && is_tanh && !config.openai_gelu;
  config.openai_gelu = is_tanh && !config.geglu && !is_head_other;
  config.bias_gelu_fusion = is_head_other && !config.geglu;
  if (config.has_linear_bias()) config.add_qkv_bias = false;
  if (!config.qk_layernorm || config.multi_latent_attention)
    config.qk_layernorm_scope = ModelConfig().qk_layernorm_scope;
  if (config.position_embedding() != PositionEmbedding::kRope) {
    config.use_rope_scaling = false;
    reset_rope_scaling(config);
  }
  simplify_rope_scaling(config);
  if (config.multi_latent_attention) simplify_latent_attention(config);
  simplify_router(config);
  if (config.attn_temperature_scale == 0) config.attn_temperature_floor = ModelConfig().attn_temperature_floor;
  if (config.rotary_base_local == config.rotary_base && !config.is_stretched()) config.rotary_base_local.reset();
  return config;
}

Configuration of_weights(ModelConfig config) {
  ModelConfig defaults;
  const OptionSet options(config), default_options(defaults);
  for (const auto& option : options.options()) {
    // Learned positions: the table's size.
    const bool is_table = option->name() == "max_position_embeddings" &&
                          config.position_embedding_type == PositionEmbedding::kLearnedAbsolute;
    if (!option->traits().changes_weights && !is_table) option->take(*default_options.find(option->name()));
  }
  return configuration_of(options);
}

}  // namespace

ModelConfig as_read(ModelConfig config) {
  ModelConfig defaults;
  const OptionSet options(config), default_options(defaults);
  for (const auto& option : options.options()) {
    if (!option->traits().read_by.contains(config.model_type)) option->take(*default_options.find(option->name()));
  }
  return config;
}

Configuration architecture_of(const ModelConfig& config) { return of_weights(filled_in(config)); }

Configuration meaning_of(const ModelConfig& config) { return of_weights(simplified(filled_in(config))); }

}  // namespace megalith
