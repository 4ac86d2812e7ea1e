// OLMo 2: Llama with norms behind attention and the MLP in the place of those in front, and a norm of all queries of a
// token and of all its keys.
// Source: OLMo team 2024, arXiv:2501.00656.
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "models/families.h"
#include "models/olmo.h"
#include "models/transformer.h"

namespace megalith {

namespace olmo2 {
namespace {

ModelConfig from_hf(const nlohmann::json& json) {
  ModelConfig config = olmo::read(json, {.max_position_embeddings = 2048, .norm_epsilon = 1e-5});
  if (config.use_rope_scaling) {
    throw UserError(fmt::format("{}: rotary scaling of type 'llama3', expected none", kHfConfigFile),
                    "Hugging Face's class does not have it either");
  }
  return config;
}

nlohmann::json to_hf(const ModelConfig& config, at::ScalarType dtype) {
  return olmo::write(config, dtype, "Olmo2ForCausalLM", "olmo2");
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
