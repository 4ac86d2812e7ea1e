// See gemma.h.
#include "models/gemma.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/json.h"

namespace megalith::gemma {

namespace {
constexpr int64_t kDefaultHeadDim = 256, kDefaultQueryScalar = 256;  // of both classes
}  // namespace

ModelConfig read(const nlohmann::json& json, const Defaults& defaults) {
  refuse_unless(json, "attention_bias", false, "biases in Gemma's attention are not provided");
  ModelConfig config = read_hf_decoder(json, {.max_position_embeddings = defaults.max_position_embeddings,
                                              .allows_window = true,
                                              .allows_linear = defaults.allows_linear,
                                              .has_gelu_gates = true,
                                              .is_tied = true});
  const bool says_head_dim = json_find<int64_t>(json, "head_dim", kHfConfigFile).has_value();
  if (!says_head_dim && kDefaultHeadDim * config.num_attention_heads != config.hidden_size) {
    config.kv_channels = kDefaultHeadDim;
  }
  config.query_pre_attn_scalar = json_get_or<double>(json, "query_pre_attn_scalar", kDefaultQueryScalar, kHfConfigFile);
  config.norm_placement = NormPlacement::kSandwich;
  config.apply_layernorm_1p = true;
  config.scale_embeddings = true;
  read_hf_windowed_layers(json, defaults.window, config);
  return config;
}

nlohmann::json write(const ModelConfig& config, at::ScalarType dtype) {
  nlohmann::json json = write_hf_decoder(config, dtype);
  json["hidden_activation"] = json["hidden_act"];
  json["attention_bias"] = false;
  const double scalar = config.query_pre_attn_scalar.value_or(static_cast<double>(config.query_head_dim()));
  json["query_pre_attn_scalar"] = scalar;
  if (scalar == std::floor(scalar)) json["query_pre_attn_scalar"] = static_cast<int64_t>(scalar);
  write_hf_windowed_layers(config, json);
  return json;
}

double read_softcap(const nlohmann::json& json, std::string_view key, double otherwise) {
  if (!json.contains(key)) return otherwise;
  return json_find<double>(json, key, kHfConfigFile).value_or(0);
}

nlohmann::json softcap_json(double softcap) { return softcap > 0 ? nlohmann::json(softcap) : nlohmann::json(nullptr); }

}  // namespace megalith::gemma
