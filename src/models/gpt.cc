// Megatron-LM's GPT: every architecture that its flags describe and that is no other family's, such as RMSNorm with
// learned positions or a squared ReLU. No Hugging Face class has it; its tensors have the names of Llama's.
// Source: Shoeybi et al. 2019, arXiv:1909.08053.
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "models/families.h"
#include "models/transformer.h"

namespace megalith {

namespace gpt {
namespace {

bool provides(const ModelConfig& /*config*/) { return true; }

ModelConfig from_hf(const nlohmann::json& /*json*/) { throw InternalError("no config.json is of the family gpt"); }

nlohmann::json to_hf(const ModelConfig& /*config*/, at::ScalarType /*dtype*/) {
  throw UserError("no Hugging Face class has this architecture, so it cannot be exported",
                  "its checkpoints can be loaded here; for an export train an architecture of another family, such as "
                  "GPT-2's: LayerNorm, learned positions, GELU by a tanh, biases, no grouped heads");
}

std::unique_ptr<Model> build(const ModelConfig& config, const LayerContext& context, const ModelPart& part) {
  return std::make_unique<Transformer>(config, TransformerNames{}, context, part);
}

}  // namespace
}  // namespace gpt

extern const ModelFamily kGpt;
const ModelFamily kGpt = {.name = "gpt",
                          .hf_model_type = "",
                          .hf_class = "",
                          .provides = gpt::provides,
                          .from_hf = gpt::from_hf,
                          .to_hf = gpt::to_hf,
                          .units = transformer_units,
                          .build = gpt::build};

}  // namespace megalith
