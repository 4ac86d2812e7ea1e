// Megatron-LM's BERT: norms in front of attention and the MLP, one behind the last layer, none of the embeddings. As
// Hugging Face has it GELU is one form everywhere; with bias_gelu_fusion, Megatron-LM's default, the MLPs compute it by
// a tanh and the head by the error function. That, experts and the like have no Hugging Face class: the second family,
// whose tensors have the names of the first.
// Source: Shoeybi et al. 2019, arXiv:1909.08053.
#include "models/bert_config.h"
#include "models/transformer.h"

namespace megalith {

namespace megatron_bert {
namespace {

HfRows rows() { return bert::rows("MegatronBertForPreTraining", "MegatronBertForMaskedLM"); }

std::vector<Unit> units(const ModelConfig& config) { return transformer_units(config, bert::megatron_names()); }

std::unique_ptr<Model> build(const ModelConfig& config, const LayerContext& context, const ModelPart& part) {
  return bert::build(config, bert::megatron_names(), context, part);
}

}  // namespace
}  // namespace megatron_bert

extern const ModelFamily kMegatronBert = {.name = "megatron_bert",
                                          .model_type = ModelType::kBert,
                                          .hf_model_type = "megatron-bert",
                                          .hf_class = "MegatronBertForPreTraining",
                                          .other_classes = {"MegatronBertForMaskedLM", "MegatronBertModel"},
                                          .hf_rows = megatron_bert::rows,
                                          .units = megatron_bert::units,
                                          .build = megatron_bert::build};

extern const ModelFamily kEncoder = {.name = "encoder",
                                     .model_type = ModelType::kBert,
                                     .units = megatron_bert::units,
                                     .build = megatron_bert::build};

}  // namespace megalith
