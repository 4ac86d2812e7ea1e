// The dictionary of OLMo 2, which OLMo 3 adds windows to; see olmo.h.
#include "models/olmo.h"

#include <nlohmann/json.hpp>

namespace megalith::olmo {

ModelConfig read(const nlohmann::json& json, const HfDefaults& defaults) {
  refuse_unless(json, "attention_bias", false, "biases in OLMo's attention are not provided");
  ModelConfig config = read_hf_decoder(json, defaults);
  config.norm_placement = NormPlacement::kPost;
  config.qk_layernorm = true;
  config.qk_layernorm_scope = HeadNormScope::kProjection;
  return config;
}

nlohmann::json write(const ModelConfig& config, at::ScalarType dtype, std::string_view hf_class,
                     std::string_view hf_model_type) {
  nlohmann::json json = write_hf_decoder(config, dtype);
  json["architectures"] = {hf_class};
  json["model_type"] = hf_model_type;
  json["attention_bias"] = false;
  json["pad_token_id"] = nullptr;  // the classes take 1, whose embedding would get no gradient
  return json;
}

}  // namespace megalith::olmo
