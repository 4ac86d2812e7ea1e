// LFM2: gated short convolutions in most layers, grouped attention with head norms in the others; LFM2-MoE: leading
// dense layers, then experts routed by sigmoids and a bias that affects only selection.
// Source: Liquid AI 2025, arXiv:2511.23404.
#include <algorithm>

#include "core/error.h"
#include "models/families.h"
#include "models/hf_shared_rows.h"
#include "models/layer_pattern.h"
#include "models/model_bounds.h"
#include "models/transformer.h"

namespace megalith {

namespace lfm2 {
namespace {

// Published files have older names of keys.
Json in_new_words(const Json& file) {
  Json json = hf_in_version_4(file);
  constexpr std::pair<const char*, const char*> kRenamed[] = {
      {"block_ff_dim", "intermediate_size"}, {"theta", "rope_theta"}, {"tie_embedding", "tie_word_embeddings"}};
  for (const auto& [old, now] : kRenamed) {
    if (json.contains(old)) json[now] = json[old];
  }
  json["rms_norm_eps"] = json.contains("norm_eps") ? json["norm_eps"] : Json(1e-5);
  return json;
}

// From the file's width the class computes its own.
Json with_own_width(const Json& file) {
  Json json = in_new_words(file);
  if (!json_get_or<bool>(json, "block_auto_adjust_ff_dim", true, kHfConfigFile)) return json;
  const int64_t given = hf_integer(json, "intermediate_size", 12288, kMostFfnWidth);
  const int64_t multiple = hf_integer(json, "block_multiple_of", 256, kMostFfnWidth);
  const double factor = json_find<double>(json, "block_ffn_dim_multiplier", kHfConfigFile).value_or(1);
  const auto width = static_cast<int64_t>(factor * static_cast<double>(2 * given / 3));
  json["intermediate_size"] = div_up(width, multiple) * multiple;
  return json;
}

void read_layers(const Json& file, ModelConfig& config) {
  if (find_member(file, "layer_types", kHfConfigFile) != nullptr) {
    check_hf_layer_types(file, {kConvolutionLayer});
    config.layer_types = json_get<std::vector<std::string>>(file, "layer_types", kHfConfigFile);
    return;
  }
  if (find_member(file, "full_attn_idxs", kHfConfigFile) == nullptr) return;
  config.layer_types.assign(static_cast<size_t>(config.num_layers), kConvolutionLayer);
  for (const int64_t layer : json_get<std::vector<int64_t>>(file, "full_attn_idxs", kHfConfigFile)) {
    if (layer >= 0 && layer < config.num_layers) config.layer_types[static_cast<size_t>(layer)] = kAttentionLayer;
  }
}

Json layer_types(const ModelConfig& config) {
  if (!config.layer_types.empty()) return config.layer_types;
  return std::vector<std::string>(static_cast<size_t>(config.num_layers), kAttentionLayer);
}

HfRows rows() {
  return hf_decoder_rows()
      .prepare(with_own_width)
      .opposite("tie_word_embeddings", &ModelConfig::untie_embeddings_and_output_weights, true)
      .field("max_position_embeddings", &ModelConfig::max_position_embeddings, 128000)
      .field("num_key_value_heads", &ModelConfig::num_query_groups, 8, &ModelConfig::num_kv_heads)
      .field("rope_theta", &ModelConfig::rotary_base, 1e6)
      .written("norm_eps", &ModelConfig::norm_epsilon)
      .always(&ModelConfig::qk_layernorm, true)
      .custom("layer_types", read_layers, layer_types)
      .field("conv_L_cache", &ModelConfig::conv_kernel_size, 3)
      .field("conv_bias", &ModelConfig::conv_bias, false)
      .written("block_auto_adjust_ff_dim", false)
      .written("pad_token_id", nullptr);  // the class takes 0, whose embedding would get no gradient
}

HfRows rows_of_experts() {
  const auto read_dense = [](const Json& file, ModelConfig& config) {
    const int64_t dense = hf_integer(file, "num_dense_layers", 2, kMostLayers, 0);
    config.moe_layer_freq = moe_layer_freq_text(std::min(dense, config.num_layers), config.num_layers);
  };
  const auto scaling = [](const ModelConfig& config) { return config.moe_router_topk_scaling_factor.value_or(1); };
  return rows()
      .prepare(in_new_words)
      .fixed("norm_topk_prob", true, "the weights of the chosen are divided by their sum")
      .field("num_experts", &ModelConfig::num_experts, 32, &ModelConfig::expert_count)
      .field("moe_intermediate_size", &ModelConfig::moe_ffn_hidden_size, 1792, &ModelConfig::expert_ffn_size)
      .field("num_experts_per_tok", &ModelConfig::moe_router_topk, 4)
      .custom("num_dense_layers", read_dense, hf_dense_layers)
      .field("routed_scaling_factor", &ModelConfig::moe_router_topk_scaling_factor, 1.0, scaling)
      .then(refuse_single_expert)
      .always(&ModelConfig::moe_router_dtype, RouterPrecision::kFp32)
      .always(&ModelConfig::moe_router_score_function, RouterScore::kSigmoid)
      .field("use_expert_bias", &ModelConfig::moe_router_enable_expert_bias, true);
}

std::unique_ptr<Model> build(const ModelConfig& config, const LayerContext& context, const ModelPart& part) {
  TransformerNames names;
  names.layer.input_norm = "operator_norm";
  names.layer.mlp_norm = "ffn_norm";
  names.layer.mlp = "feed_forward";
  names.attention = {.output = "out_proj", .q_norm = "q_layernorm", .k_norm = "k_layernorm"};
  names.mlp = {.gate = "w1", .up = "w3", .down = "w2"};
  names.experts = {.gate = "w1", .up = "w3", .down = "w2", .bias = "expert_bias"};
  names.final_norm = "model.embedding_norm";
  return std::make_unique<Transformer>(config, names, context, part);
}

}  // namespace
}  // namespace lfm2

extern const ModelFamily kLfm2 = {.name = "lfm2",
                                  .hf_model_type = "lfm2",
                                  .hf_class = "Lfm2ForCausalLM",
                                  .hf_rows = lfm2::rows,
                                  .build = lfm2::build};
extern const ModelFamily kLfm2Moe = {.name = "lfm2_moe",
                                     .hf_model_type = "lfm2_moe",
                                     .hf_class = "Lfm2MoeForCausalLM",
                                     .hf_rows = lfm2::rows_of_experts,
                                     .build = lfm2::build};

}  // namespace megalith
