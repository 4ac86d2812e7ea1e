// The chunk of a transformer of one stack of layers, a decoder or a BERT, that a pipeline stage holds, built from a
// range of the model's units: embedding (with positions and types of tokens), layers, modules of multi-token
// prediction, head (with the final norm, and what a BERT has after it).
//
// A BERT reads ModelInput::more: "token_types" (b, s) int64 on the first stage, all 0 where it is absent, and where the
// input has a second term "sentence_labels" (b) int64 on the last.
//
// Canonical names are those of the family's Hugging Face class (TransformerNames). Between units travels one tensor,
// "hidden" (t, h): the residual stream.
//
// A chunk that ends with states instead of a head (states_units(), models/families.h) predicts nothing. Its
// ModelOutput::boundary has "states" (t, h), what a head would read, and with a pooler "pooled" (b, h). Without
// sequence parallelism.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "models/prediction_module.h"
#include "models/text_units.h"

namespace megalith {

// A term without an objective beside the sentences' loss: how many of them a BERT tells right, of those that count.
inline constexpr const char* kSentenceAccuracy = "sop accuracy";

// The kinds of its units.
inline constexpr const char *kEmbeddingUnit = "embedding", *kLayerUnit = "layer",
                            *kPredictionUnit = "prediction module", *kHeadUnit = "head", *kStatesUnit = "states",
                            *kPooledStatesUnit = "pooled states";

// One embedding, the layers, the prediction modules, one head. With Llama's names when none are given.
std::vector<Unit> transformer_units(const ModelConfig& config, const TransformerNames& names);
std::vector<Unit> transformer_units(const ModelConfig& config);

// The units of such a model with states in the place of the prediction modules and the head.
//   has_pooler  a BERT's, which makes one vector of a sequence
std::vector<Unit> with_states_as_end(std::vector<Unit> units, bool has_pooler);

class Transformer : public UnitChunk {
 public:
  // The configuration passed check_model_config() and has a vocab_size; UserErrors otherwise. The part is of
  // transformer_units().
  Transformer(const ModelConfig& config, TransformerNames names, const LayerContext& context, const ModelPart& part);

 protected:
  std::vector<Step> make_steps(const Unit& unit, const LayerContext& context, int64_t layer) override;
  std::shared_ptr<UnitPass> make_pass(const ModelInput& input, const ForwardContext& context) const override;
  int64_t num_rows(const std::string& tensor, const ForwardContext& context) const override;

 private:
  TransformerNames names_;
  std::shared_ptr<const LayerViewer> viewer_;
  std::vector<std::unique_ptr<PredictionModule>> predictions_;  // for the head, which comes after their units
};

// With Llama's names: how a family builds whose class has them.
std::unique_ptr<Model> build_transformer(const ModelConfig& config, const LayerContext& context, const ModelPart& part);

}  // namespace megalith
