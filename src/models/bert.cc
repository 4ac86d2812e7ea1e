// Hugging Face's BERT, the published one: norms of the embeddings and of each residual sum (post-norm). Source: Devlin
// et al. 2019, arXiv:1810.04805.
#include "models/bert_config.h"
#include "models/transformer.h"

namespace megalith {

namespace bert {
namespace {

HfRows published_rows() {
  return rows("BertForPreTraining", "BertForMaskedLM")
      .always(&ModelConfig::norm_placement, NormPlacement::kPostLn)
      .always(&ModelConfig::embedding_norm, true);
}

std::vector<Unit> units(const ModelConfig& config) { return transformer_units(config, names()); }

std::unique_ptr<Model> build_published(const ModelConfig& config, const LayerContext& context, const ModelPart& part) {
  return build(config, names(), context, part);
}

}  // namespace
}  // namespace bert

extern const ModelFamily kBert = {.name = "bert",
                                  .model_type = ModelType::kBert,
                                  .hf_model_type = "bert",
                                  .hf_class = "BertForPreTraining",
                                  .other_classes = {"BertForMaskedLM", "BertModel"},
                                  .hf_rows = bert::published_rows,
                                  .units = bert::units,
                                  .build = bert::build_published};

}  // namespace megalith
