// Hugging Face's BERT, which is the published one: a norm of the embeddings, and norms around the sums of the stream
// and what attention and the MLP add to it. Source: Devlin et al. 2019, arXiv:1810.04805.
#include <nlohmann/json.hpp>

#include "models/bert_config.h"
#include "models/transformer.h"

namespace megalith {

namespace bert {
namespace {

Network published() {
  return {.model_type = "bert",
          .hf_class = "BertForPreTraining",
          .masked_class = "BertForMaskedLM",
          .norm_placement = NormPlacement::kPostLn,
          .embedding_norm = true};
}

ModelConfig from_hf(const nlohmann::json& json) { return read(json, published()); }

nlohmann::json to_hf(const ModelConfig& config, at::ScalarType dtype) { return write(config, dtype, published()); }

std::vector<Unit> units(const ModelConfig& config) { return transformer_units(config, names()); }

std::unique_ptr<Model> build_published(const ModelConfig& config, const LayerContext& context, const ModelPart& part) {
  return build(config, names(), context, part);
}

}  // namespace
}  // namespace bert

extern const ModelFamily kBert;
const ModelFamily kBert = {.name = "bert",
                           .model_type = ModelType::kBert,
                           .hf_model_type = "bert",
                           .hf_class = "BertForPreTraining",
                           .other_classes = {"BertForMaskedLM", "BertModel"},
                           .from_hf = bert::from_hf,
                           .to_hf = bert::to_hf,
                           .units = bert::units,
                           .build = bert::build_published};

}  // namespace megalith
