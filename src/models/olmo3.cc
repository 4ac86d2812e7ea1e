// OLMo 3: OLMo 2 with a window in three of four layers, which rotate as they did before long wavelengths were
// stretched. Source: OLMo team 2025, arXiv:2512.13961.
#include <nlohmann/json.hpp>

#include "models/families.h"
#include "models/olmo.h"
#include "models/transformer.h"

namespace megalith {

namespace olmo3 {
namespace {

ModelConfig from_hf(const nlohmann::json& json) {
  ModelConfig config = olmo::read(
      json, {.max_position_embeddings = 2048, .allows_heads_yarn = true, .allows_window = true, .norm_epsilon = 1e-5});
  read_hf_windowed_layers(json, {.window = 4096, .skip_freq = "4"}, config);
  if (config.use_rope_scaling && config.attention_window() > 0) config.rotary_base_local = config.rotary_base;
  return config;
}

nlohmann::json to_hf(const ModelConfig& config, at::ScalarType dtype) {
  nlohmann::json json = olmo::write(config, dtype, "Olmo3ForCausalLM", "olmo3");
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
