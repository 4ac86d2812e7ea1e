// Qwen2.5: Llama with biases on the query, key and value projections.
// Source: Qwen team 2024, arXiv:2412.15115.
#include <nlohmann/json.hpp>

#include "models/families.h"
#include "models/hf_config.h"
#include "models/transformer.h"

namespace megalith {

namespace qwen2 {
namespace {

ModelConfig from_hf(const nlohmann::json& json) {
  ModelConfig config = read_hf_decoder(json, {.max_position_embeddings = 32768, .allows_window = true});
  read_hf_upper_window(json, config);
  config.add_qkv_bias = true;
  return config;
}

nlohmann::json to_hf(const ModelConfig& config, at::ScalarType dtype) {
  nlohmann::json json = write_hf_decoder(config, dtype);
  json["architectures"] = {"Qwen2ForCausalLM"};
  json["model_type"] = "qwen2";
  write_hf_upper_window(config, json);
  return json;
}

}  // namespace
}  // namespace qwen2

extern const ModelFamily kQwen2;
const ModelFamily kQwen2 = {.name = "qwen2",
                            .hf_model_type = "qwen2",
                            .hf_class = "Qwen2ForCausalLM",
                            .from_hf = qwen2::from_hf,
                            .to_hf = qwen2::to_hf,
                            .units = transformer_units,
                            .build = build_transformer};

}  // namespace megalith
