// Megatron-LM's BERT: pre-norm, with a final norm and no embedding norm. Hugging Face's class has one GELU throughout;
// with bias_gelu_fusion, Megatron-LM's default, MLPs use tanh and the head the error function. That, experts and the
// like have no Hugging Face class: the second family, with the first one's names.
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
