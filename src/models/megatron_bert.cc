// Megatron-LM's BERT: norms in front of attention and the MLP, one behind the last layer, none of the embeddings. As
// Hugging Face has it GELU is one form everywhere; with bias_gelu_fusion, Megatron-LM's default, the MLPs compute it by
// a tanh and the head by the error function. That, experts and the like have no Hugging Face class: the second family,
// whose tensors have the names of the first.
// Source: Shoeybi et al. 2019, arXiv:1909.08053.
#include <nlohmann/json.hpp>

#include "models/bert_config.h"
#include "models/transformer.h"

namespace megalith {

namespace megatron_bert {
namespace {

bert::Network network() {
  return {.model_type = "megatron-bert",
          .hf_class = "MegatronBertForPreTraining",
          .masked_class = "MegatronBertForMaskedLM",
          .norm_placement = NormPlacement::kPre,
          .embedding_norm = false};
}

ModelConfig from_hf(const nlohmann::json& json) { return bert::read(json, network()); }

nlohmann::json to_hf(const ModelConfig& config, at::ScalarType dtype) { return bert::write(config, dtype, network()); }

std::vector<Unit> units(const ModelConfig& config) { return transformer_units(config, bert::megatron_names()); }

std::unique_ptr<Model> build(const ModelConfig& config, const LayerContext& context, const ModelPart& part) {
  return bert::build(config, bert::megatron_names(), context, part);
}

}  // namespace
}  // namespace megatron_bert

extern const ModelFamily kMegatronBert;
const ModelFamily kMegatronBert = {.name = "megatron_bert",
                                   .model_type = ModelType::kBert,
                                   .hf_model_type = "megatron-bert",
                                   .hf_class = "MegatronBertForPreTraining",
                                   .other_classes = {"MegatronBertForMaskedLM", "MegatronBertModel"},
                                   .from_hf = megatron_bert::from_hf,
                                   .to_hf = megatron_bert::to_hf,
                                   .units = megatron_bert::units,
                                   .build = megatron_bert::build};

extern const ModelFamily kEncoder;
const ModelFamily kEncoder = {.name = "encoder",
                              .model_type = ModelType::kBert,
                              .hf_model_type = "",
                              .hf_class = "",
                              .from_hf = nullptr,
                              .to_hf = nullptr,
                              .units = megatron_bert::units,
                              .build = megatron_bert::build};

}  // namespace megalith
