// Gemma 2: gated GELU, norms on both sides of attention and the MLP, scores and logits under a cap, and a window in
// every other layer.
// Source: Gemma team 2024, arXiv:2408.00118.
#include <nlohmann/json.hpp>

#include "models/families.h"
#include "models/gemma.h"
#include "models/transformer.h"

namespace megalith {

namespace gemma2 {
namespace {

ModelConfig from_hf(const nlohmann::json& json) {
  ModelConfig config =
      gemma::read(json, {.max_position_embeddings = 8192, .window = {.window = 4096, .skip_freq = "2"}});
  config.attn_logit_softcapping = gemma::read_softcap(json, "attn_logit_softcapping", 50);
  config.final_logit_softcapping = gemma::read_softcap(json, "final_logit_softcapping", 30);
  return config;
}

nlohmann::json to_hf(const ModelConfig& config, at::ScalarType dtype) {
  nlohmann::json json = gemma::write(config, dtype);
  json["architectures"] = {"Gemma2ForCausalLM"};
  json["model_type"] = "gemma2";
  json["attn_logit_softcapping"] = gemma::softcap_json(config.attn_logit_softcapping);
  json["final_logit_softcapping"] = gemma::softcap_json(config.final_logit_softcapping);
  return json;
}

}  // namespace
}  // namespace gemma2

extern const ModelFamily kGemma2;
const ModelFamily kGemma2 = {.name = "gemma2",
                             .hf_model_type = "gemma2",
                             .hf_class = "Gemma2ForCausalLM",
                             .from_hf = gemma2::from_hf,
                             .to_hf = gemma2::to_hf,
                             .units = transformer_units,
                             .build = build_transformer};

}  // namespace megalith
