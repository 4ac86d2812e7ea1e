// Llama 2, 3, 3.1, 3.2 and 3.3: RMSNorm, rotary positions, grouped heads, gated MLP, no biases.
// Source: Touvron et al. 2023, arXiv:2307.09288; Dubey et al. 2024, arXiv:2407.21783.
#include <nlohmann/json.hpp>

#include "models/families.h"
#include "models/hf_config.h"
#include "models/transformer.h"

namespace megalith {

namespace llama {
namespace {

ModelConfig from_hf(const nlohmann::json& json) {
  refuse_unless(json, "attention_bias", false,
                "biases of only q, k and v are Qwen2's; Llama's output bias is not provided");
  refuse_unless(json, "mlp_bias", false, "biases in the MLP are not provided");
  return read_hf_decoder(json, {.max_position_embeddings = 2048});
}

nlohmann::json to_hf(const ModelConfig& config, at::ScalarType dtype) {
  nlohmann::json json = write_hf_decoder(config, dtype);
  json["architectures"] = {"LlamaForCausalLM"};
  json["model_type"] = "llama";
  json["attention_bias"] = false;
  json["mlp_bias"] = false;
  json["pretraining_tp"] = 1;
  return json;
}

}  // namespace
}  // namespace llama

extern const ModelFamily kLlama;
const ModelFamily kLlama = {.name = "llama",
                            .hf_model_type = "llama",
                            .hf_class = "LlamaForCausalLM",
                            .from_hf = llama::from_hf,
                            .to_hf = llama::to_hf,
                            .units = transformer_units,
                            .build = build_transformer};

}  // namespace megalith
