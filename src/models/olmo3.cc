// OLMo 3: OLMo 2 with a window in three of four layers, which rotate as they did before long wavelengths were
// stretched. Source: OLMo team 2025, arXiv:2512.13961.
#include <nlohmann/json.hpp>

#include "models/families.h"
#include "models/hf_config.h"
#include "models/transformer.h"

namespace megalith {

namespace olmo3 {
namespace {

ModelConfig from_hf(const nlohmann::json& json) {
  refuse_unless(json, "attention_bias", false, "biases in OLMo's attention are not provided");
  ModelConfig config = read_hf_decoder(
      json, {.max_position_embeddings = 2048, .allows_heads_yarn = true, .allows_window = true, .norm_epsilon = 1e-5});
  read_hf_windowed_layers(json, {.window = 4096, .skip_freq = "4"}, config);
  if (config.use_rope_scaling && config.attention_window() > 0) config.rotary_base_local = config.rotary_base;
  config.norm_placement = NormPlacement::kPost;
  config.qk_layernorm = true;
  config.qk_layernorm_scope = HeadNormScope::kProjection;
  return config;
}

nlohmann::json to_hf(const ModelConfig& config, at::ScalarType dtype) {
  nlohmann::json json = write_hf_decoder(config, dtype);
  json["architectures"] = {"Olmo3ForCausalLM"};
  json["model_type"] = "olmo3";
  json["attention_bias"] = false;
  json["pad_token_id"] = nullptr;  // the class takes 1, whose embedding would get no gradient
  write_hf_windowed_layers(config, json);
  return json;
}

}  // namespace
}  // namespace olmo3

extern const ModelFamily kOlmo3;
const ModelFamily kOlmo3 = {.name = "olmo3",
                            .hf_model_type = "olmo3",
                            .hf_class = "Olmo3ForCausalLM",
                            .from_hf = olmo3::from_hf,
                            .to_hf = olmo3::to_hf,
                            .units = transformer_units,
                            .build = build_transformer};

}  // namespace megalith
