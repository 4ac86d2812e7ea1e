// OLMo 2: Llama with norms behind attention and the MLP in the place of those in front, and a norm of all queries of a
// token and of all its keys.
// Source: OLMo team 2024, arXiv:2501.00656.
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "models/families.h"
#include "models/hf_config.h"
#include "models/transformer.h"

namespace megalith {

namespace olmo2 {
namespace {

ModelConfig from_hf(const nlohmann::json& json) {
  refuse_unless(json, "attention_bias", false, "biases in OLMo's attention are not provided");
  ModelConfig config = read_hf_decoder(json, {.max_position_embeddings = 2048, .norm_epsilon = 1e-5});
  if (config.use_rope_scaling) {
    throw UserError(fmt::format("{}: rotary scaling of type 'llama3', expected none", kHfConfigFile),
                    "Hugging Face's class does not have it either");
  }
  config.norm_placement = NormPlacement::kPost;
  config.qk_layernorm = true;
  config.qk_layernorm_scope = HeadNormScope::kProjection;
  return config;
}

nlohmann::json to_hf(const ModelConfig& config, at::ScalarType dtype) {
  nlohmann::json json = write_hf_decoder(config, dtype);
  json["architectures"] = {"Olmo2ForCausalLM"};
  json["model_type"] = "olmo2";
  json["attention_bias"] = false;
  json["pad_token_id"] = nullptr;  // the class takes 1, whose embedding would get no gradient
  return json;
}

}  // namespace
}  // namespace olmo2

extern const ModelFamily kOlmo2;
const ModelFamily kOlmo2 = {.name = "olmo2",
                            .hf_model_type = "olmo2",
                            .hf_class = "Olmo2ForCausalLM",
                            .from_hf = olmo2::from_hf,
                            .to_hf = olmo2::to_hf,
                            .units = transformer_units,
                            .build = build_transformer};

}  // namespace megalith
