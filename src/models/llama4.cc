// Llama 4, its text: layers that rotate see a chunk of the sequence and norm their heads without weights; every fourth
// sees everything, without positions; one expert a token, whose input counts by the router's weight, and a shared one.
// Source: Meta AI 2025, "The Llama 4 herd"; transformers, models/llama4.
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json.h"
#include "models/families.h"
#include "models/hf_config.h"
#include "models/layer_pattern.h"
#include "models/transformer.h"

namespace megalith {

namespace llama4 {
namespace {

using Layers = std::vector<int64_t>;

constexpr const char *kChunked = "chunked_attention", *kWhole = "full_attention";

// no_rope_layers has 1 for a layer that rotates.
Layers unrotated_layers(const Json& json, int64_t num_layers) {
  Layers layers = json_get_or<Layers>(json, "no_rope_layers", {}, kHfConfigFile);
  if (layers.empty()) {
    const auto interval = json_get_or<int64_t>(json, "no_rope_layer_interval", 4, kHfConfigFile);
    check_hf_sizes({interval});
    return parse_no_rope_freq(std::to_string(interval), num_layers);
  }
  for (int64_t& layer : layers) layer = layer == 0 ? 1 : 0;
  return parse_no_rope_freq(fmt::format("[{}]", fmt::join(layers, ",")), num_layers);
}

// 1 for a layer with experts.
Layers expert_layers(const Json& json, int64_t num_layers) {
  Layers layers(static_cast<size_t>(num_layers), 0);
  if (find_member(json, "moe_layers", kHfConfigFile) != nullptr) {
    for (const int64_t layer : json_get<Layers>(json, "moe_layers", kHfConfigFile)) {
      if (layer < 0 || layer >= num_layers) {
        throw UserError(fmt::format("{}: moe_layers has {}, and there are {} layers", kHfConfigFile, layer, num_layers),
                        "the file is broken");
      }
      layers[static_cast<size_t>(layer)] = 1;
    }
    return layers;
  }
  const auto step = json_get_or<int64_t>(json, "interleave_moe_layer_step", 1, kHfConfigFile);
  check_hf_sizes({step});
  for (int64_t layer = step - 1; layer < num_layers; layer += step) layers[static_cast<size_t>(layer)] = 1;
  return layers;
}

// The class lets layers that rotate have chunks, and its files say so twice.
bool has_chunks(const Json& json, const Layers& unrotated) {
  const Json* types = find_member(json, "layer_types", kHfConfigFile);
  if (types == nullptr) return true;
  const auto named = json_as<std::vector<std::string>>(*types, "config.json: layer_types");
  const auto count = std::count(named.begin(), named.end(), kChunked);
  if (count == 0) return false;
  for (size_t i = 0; i < unrotated.size(); ++i) {
    if (i < named.size() && named[i] == (unrotated[i] == 1 ? kWhole : kChunked)) continue;
    throw UserError(fmt::format("{}: layer_types has chunks in other layers than those that rotate", kHfConfigFile),
                    "this model cannot be loaded: chunks and rotation go together here");
  }
  return true;
}

// A switch, or a number where published files have one.
bool is_tempered(const Json& json) {
  const Json* value = find_member(json, "attn_temperature_tuning", kHfConfigFile);
  if (value == nullptr) return true;
  return value->is_number() ? json_as<double>(*value, "attn_temperature_tuning") != 0
                            : json_as<bool>(*value, "config.json: attn_temperature_tuning");
}

// What the class takes for missing keys, where it differs from what other classes take.
Json with_defaults(const Json& file) {
  Json json = file;
  if (!json.contains("rope_theta") && !json.contains("rope_parameters")) json["rope_theta"] = 500000.0;
  if (!json.contains("num_key_value_heads")) json["num_key_value_heads"] = 8;
  if (find_member(json, "head_dim", kHfConfigFile) == nullptr) json["head_dim"] = 128;
  return json;
}

ModelConfig from_hf(const Json& file) {
  const Json json = with_defaults(file);
  refuse_unless(json, "attention_bias", false, "biases in Llama 4's attention are not provided");
  refuse_unless(json, "router_jitter_noise", 0.0, "noise on the experts' input is not provided");
  refuse_unless(json, "num_experts_per_tok", 1, "more than one expert for a token is not provided in Llama 4");
  ModelConfig config =
      read_hf_decoder(json, {.max_position_embeddings = 131072, .allows_chunks = true, .norm_epsilon = 1e-5});
  config.rotary_interleaved = true;
  const Layers unrotated = unrotated_layers(json, config.num_layers);
  config.no_rope_freq = no_rope_freq_text(unrotated);
  if (has_chunks(json, unrotated)) {
    config.attention_chunk_size = json_get_or<int64_t>(json, "attention_chunk_size", 8192, kHfConfigFile);
  }
  config.qk_l2_norm = json_get_or<bool>(json, "use_qk_norm", true, kHfConfigFile);
  if (!config.no_rope_freq.empty() && is_tempered(json)) {
    config.attn_temperature_scale = json_get_or<double>(json, "attn_scale", 0.1, kHfConfigFile);
    config.attn_temperature_floor = json_get_or<int64_t>(json, "floor_scale", 8192, kHfConfigFile);
  }
  config.moe_ffn_hidden_size = config.ffn_hidden_size;
  config.moe_shared_expert_intermediate_size = config.ffn_hidden_size;
  config.ffn_hidden_size = json_get_or<int64_t>(json, "intermediate_size_mlp", 16384, kHfConfigFile);
  config.num_experts = json_get_or<int64_t>(json, "num_local_experts", 16, kHfConfigFile);
  check_hf_sizes({*config.ffn_hidden_size, *config.num_experts, config.attn_temperature_floor});
  config.moe_layer_freq = normalised_moe_layer_freq(
      fmt::format("[{}]", fmt::join(expert_layers(json, config.num_layers), ",")), config.num_layers);
  config.moe_router_topk = 1;
  config.moe_router_score_function = RouterScore::kSigmoid;
  config.moe_apply_probs_on_input = true;
  if (json_get_or<bool>(json, "output_router_logits", false, kHfConfigFile)) {
    config.moe_aux_loss_coeff = json_get_or<double>(json, "router_aux_loss_coef", 0.001, kHfConfigFile);
  }
  return config;
}

Json to_hf(const ModelConfig& config, at::ScalarType dtype) {
  ModelConfig plain = config;
  plain.rotary_interleaved = false;  // the class's own, which from_hf() says again
  Json json = write_hf_decoder(plain, dtype);
  const Layers unrotated = config.layers_without_rotation();
  Json types = Json::array(), rotated = Json::array(), with_experts = Json::array();
  for (size_t i = 0; i < unrotated.size(); ++i) {
    rotated.push_back(1 - unrotated[i]);
    types.push_back(unrotated[i] == 0 && config.attention_chunk_size > 0 ? kChunked : kWhole);
    if (config.has_experts_at(static_cast<int64_t>(i))) with_experts.push_back(i);
  }
  json.update({
      {"architectures", {"Llama4ForCausalLM"}},
      {"model_type", "llama4_text"},
      {"attention_bias", false},
      {"intermediate_size", config.has_experts() ? config.expert_ffn_size() : config.ffn_size()},
      {"intermediate_size_mlp", config.ffn_size()},
      {"num_local_experts", std::max<int64_t>(config.expert_count(), 1)},
      {"num_experts_per_tok", config.moe_router_topk},
      {"moe_layers", with_experts},
      {"interleave_moe_layer_step", 1},
      {"no_rope_layers", rotated},
      {"layer_types", types},
      {"attention_chunk_size", config.attention_chunk_size > 0 ? config.attention_chunk_size : 8192},
      {"use_qk_norm", config.qk_l2_norm},
      {"attn_temperature_tuning", config.attn_temperature_scale > 0},
      {"attn_scale", config.attn_temperature_scale > 0 ? config.attn_temperature_scale : 0.1},
      {"floor_scale", config.attn_temperature_floor},
      {"output_router_logits", false},
      {"router_aux_loss_coef", config.moe_aux_loss_coeff},
      {"router_jitter_noise", 0.0},
  });
  return json;
}

std::unique_ptr<Model> build(const ModelConfig& config, const LayerContext& context, const ModelPart& part) {
  TransformerNames names;
  names.layer.mlp = "feed_forward";
  names.experts = {
      .stacked_gate_up = "gate_up_proj", .stacked_down = "down_proj", .router = "router", .shared = "shared_expert"};
  return std::make_unique<Transformer>(config, names, context, part);
}

}  // namespace
}  // namespace llama4

extern const ModelFamily kLlama4;
const ModelFamily kLlama4 = {.name = "llama4",
                             .hf_model_type = "llama4_text",
                             .hf_class = "Llama4ForCausalLM",
                             .from_hf = llama4::from_hf,
                             .to_hf = llama4::to_hf,
                             .units = transformer_units,
                             .build = llama4::build};

}  // namespace megalith
