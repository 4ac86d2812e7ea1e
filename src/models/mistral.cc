// Mistral 7B: Llama whose tokens see a window of the last ones. Files without a window are Llama's architecture.
// Source: Jiang et al. 2023, arXiv:2310.06825; the window is Beltagy et al. 2020, arXiv:2004.05150.
#include <nlohmann/json.hpp>

#include "models/families.h"
#include "models/hf_config.h"
#include "models/transformer.h"

namespace megalith {

namespace mistral {
namespace {

ModelConfig from_hf(const nlohmann::json& json) {
  ModelConfig config = read_hf_decoder(json, {.max_position_embeddings = 4096 * 32, .allows_window = true});
  read_hf_window(json, 4096, config);
  return config;
}

nlohmann::json to_hf(const ModelConfig& config, at::ScalarType dtype) {
  nlohmann::json json = write_hf_decoder(config, dtype);
  json["architectures"] = {"MistralForCausalLM"};
  json["model_type"] = "mistral";
  json["sliding_window"] = nullptr;
  if (config.has_windows()) json["sliding_window"] = config.attention_window();
  return json;
}

}  // namespace
}  // namespace mistral

extern const ModelFamily kMistral;
const ModelFamily kMistral = {.name = "mistral",
                              .hf_model_type = "mistral",
                              .hf_class = "MistralForCausalLM",
                              .from_hf = mistral::from_hf,
                              .to_hf = mistral::to_hf,
                              .units = transformer_units,
                              .build = build_transformer};

}  // namespace megalith
