// Qwen3, dense: Llama with a norm of each query and key head before its rotation.
// Source: Qwen team 2025, arXiv:2505.09388.
#include <nlohmann/json.hpp>

#include "core/json.h"
#include "models/families.h"
#include "models/hf_config.h"
#include "models/transformer.h"

namespace megalith {

namespace qwen3 {
namespace {

constexpr int64_t kDefaultHeadDim = 128;  // of the class, whatever hidden_size / num_attention_heads is

ModelConfig from_hf(const nlohmann::json& json) {
  refuse_unless(json, "attention_bias", false, "biases in Qwen3's attention are not provided");
  ModelConfig config = read_hf_decoder(json, {.max_position_embeddings = 32768, .allows_window = true});
  read_hf_upper_window(json, config);
  const bool says_head_dim = json_find<int64_t>(json, "head_dim", kHfConfigFile).has_value();
  if (!says_head_dim && kDefaultHeadDim * config.num_attention_heads != config.hidden_size) {
    config.kv_channels = kDefaultHeadDim;
  }
  config.qk_layernorm = true;
  return config;
}

nlohmann::json to_hf(const ModelConfig& config, at::ScalarType dtype) {
  nlohmann::json json = write_hf_decoder(config, dtype);
  json["architectures"] = {"Qwen3ForCausalLM"};
  json["model_type"] = "qwen3";
  json["attention_bias"] = false;
  write_hf_upper_window(config, json);
  return json;
}

}  // namespace
}  // namespace qwen3

extern const ModelFamily kQwen3;
const ModelFamily kQwen3 = {.name = "qwen3",
                            .hf_model_type = "qwen3",
                            .hf_class = "Qwen3ForCausalLM",
                            .from_hf = qwen3::from_hf,
                            .to_hf = qwen3::to_hf,
                            .units = transformer_units,
                            .build = build_transformer};

}  // namespace megalith
