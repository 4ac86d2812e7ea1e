// Llama 4 (text): rotated layers attend within chunks and norm heads without weights; every fourth is global, without
// positions; one routed expert a token, its input scaled by the router's weight, and a shared one.
// Source: Meta AI 2025, "The Llama 4 herd"; transformers, models/llama4.
#include <fmt/ranges.h>

#include <algorithm>

#include "core/error.h"
#include "models/families.h"
#include "models/hf_shared_rows.h"
#include "models/layer_pattern.h"
#include "models/model_bounds.h"
#include "models/transformer.h"

namespace megalith {

namespace llama4 {
namespace {

using Layers = std::vector<int64_t>;

constexpr const char *kChunked = "chunked_attention", *kWhole = "full_attention";
constexpr int64_t kChunk = 8192;  // hard-coded in the class, as are the next
constexpr double kTemperature = 0.1;

void read_expert_layers(const Json& file, ModelConfig& config) {
  Layers layers(static_cast<size_t>(config.num_layers), 0);
  if (find_member(file, "moe_layers", kHfConfigFile) != nullptr) {
    for (const int64_t layer : json_get<Layers>(file, "moe_layers", kHfConfigFile)) {
      if (layer < 0 || layer >= config.num_layers) {
        throw UserError(fmt::format("{}: moe_layers has {}, and there are {} layers", kHfConfigFile, layer,
                                    config.num_layers),
                        "the file is broken");
      }
      layers[static_cast<size_t>(layer)] = 1;
    }
  } else {
    const int64_t step = hf_integer(file, "interleave_moe_layer_step", 1, kMostLayers);
    for (int64_t layer = step - 1; layer < config.num_layers; layer += step) layers[static_cast<size_t>(layer)] = 1;
  }
  config.moe_layer_freq = normalised_moe_layer_freq(fmt::format("[{}]", fmt::join(layers, ",")), config.num_layers);
}

Json expert_layers(const ModelConfig& config) {
  Json layers = Json::array();
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    if (config.has_experts_at(layer)) layers.push_back(layer);
  }
  return layers;
}

// In the class, rotated layers have chunks; its files say so twice.
void read_chunks(const Json& file, ModelConfig& config) {
  if (const Json* types = find_member(file, "layer_types", kHfConfigFile)) {
    const auto named = json_as<std::vector<std::string>>(*types, "config.json: layer_types");
    if (std::ranges::find(named, kChunked) == named.end()) return;
    const Layers unrotated = config.layers_without_rotation();
    for (size_t i = 0; i < unrotated.size(); ++i) {
      if (i < named.size() && named[i] == (unrotated[i] == 1 ? kWhole : kChunked)) continue;
      throw UserError(fmt::format("{}: layer_types has chunks in other layers than those that rotate", kHfConfigFile),
                      "this model cannot be loaded: chunks and rotation go together here");
    }
  }
  config.attention_chunk_size = hf_integer(file, "attention_chunk_size", kChunk, kMostPositions);
}

Json layer_types(const ModelConfig& config) {
  Json types = Json::array();
  for (const int64_t unrotated : config.layers_without_rotation()) {
    types.push_back(unrotated == 0 && config.attention_chunk_size > 0 ? kChunked : kWhole);
  }
  return types;
}

// A switch, or a number in published files.
bool is_tempered(const Json& file) {
  const Json* value = find_member(file, "attn_temperature_tuning", kHfConfigFile);
  if (value == nullptr) return true;
  return value->is_number() ? json_as<double>(*value, "attn_temperature_tuning") != 0
                            : json_as<bool>(*value, "config.json: attn_temperature_tuning");
}

void read_temperature(const Json& file, ModelConfig& config) {
  if (config.no_rope_freq.empty() || !is_tempered(file)) return;
  config.attn_temperature_scale = json_get_or<double>(file, "attn_scale", kTemperature, kHfConfigFile);
  config.attn_temperature_floor = hf_integer(file, "floor_scale", kChunk, kMostPositions);
}

HfRows rows() {
  using Config = ModelConfig;
  return hf_decoder_rows()
      .fixed("attention_bias", false, "biases in Llama 4's attention are not provided")
      .fixed("router_jitter_noise", 0.0, "noise on the experts' input is not provided")
      .fixed("num_experts_per_tok", 1, "more than one expert for a token is not provided in Llama 4",
             &Config::moe_router_topk)
      .required("intermediate_size", &Config::moe_ffn_hidden_size,
                [](const Config& c) { return c.has_experts() ? c.expert_ffn_size() : c.ffn_size(); })
      .field("max_position_embeddings", &Config::max_position_embeddings, 131072)
      .nullable("num_key_value_heads", &Config::num_query_groups, 8, &Config::num_attention_heads,
                &Config::num_kv_heads)
      .field("head_dim", &Config::kv_channels, 128, &Config::query_head_dim)
      .field("rms_norm_eps", &Config::norm_epsilon, 1e-5)
      .field("rope_theta", &Config::rotary_base, 500000.0)
      .only("partial_rotary_factor", 1.0, "all channels of a head are rotated in this family")
      .always(&Config::rotary_interleaved, true)
      .join(hf_unrotated_layers_rows())
      .custom("layer_types", [](const Json& file, Config&) { check_hf_layer_types(file, {kChunked}); }, layer_types)
      .custom("attention_chunk_size", read_chunks,
              [](const Config& c) { return c.attention_chunk_size > 0 ? c.attention_chunk_size : kChunk; })
      .field("use_qk_norm", &Config::qk_l2_norm, true)
      .custom("attn_temperature_tuning", read_temperature,
              [](const Config& config) { return config.attn_temperature_scale > 0; })
      .written("attn_scale",
               [](const Config& c) { return c.attn_temperature_scale > 0 ? c.attn_temperature_scale : kTemperature; })
      .written("floor_scale", &Config::attn_temperature_floor)
      .then([](Config& config) { config.moe_shared_expert_intermediate_size = config.moe_ffn_hidden_size; })
      .field("intermediate_size_mlp", &Config::ffn_hidden_size, 16384, &Config::ffn_size)
      .field("num_local_experts", &Config::num_experts, 16,
             [](const Config& config) { return std::max<int64_t>(config.expert_count(), 1); })
      .custom("moe_layers", read_expert_layers, expert_layers)
      .written("interleave_moe_layer_step", 1)
      .always(&Config::moe_router_topk, 1)
      .always(&Config::moe_router_score_function, RouterScore::kSigmoid)
      .always(&Config::moe_apply_probs_on_input, true)
      .join(hf_balance_rows(0.001));
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

extern const ModelFamily kLlama4 = {.name = "llama4",
                                    .hf_model_type = "llama4_text",
                                    .hf_class = "Llama4ForCausalLM",
                                    .hf_rows = llama4::rows,
                                    .build = llama4::build};

}  // namespace megalith
