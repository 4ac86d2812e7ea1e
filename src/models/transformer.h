// The chunk of a transformer of one stack of layers, a decoder or a BERT, that a pipeline stage holds, built from a
// range of the model's units: embedding (with positions and types of tokens), layers, modules of multi-token
// prediction, head (with the final norm, and what a BERT has after it).
//
// Canonical names are those of the family's Hugging Face class (TransformerNames). Between units travels one tensor,
// "hidden" (t, h): the residual stream.
//
// A chunk that ends with states instead of a head (models/states_units.h) predicts nothing. Its ModelOutput::boundary
// has kStates (t, h), what a head would read, and with a pooler kPooled (b, h). Without sequence parallelism.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "models/text_units.h"

namespace megalith {

// A BERT's, in ModelInput::more.
namespace input {
// First stage; absent: all 0.
inline constexpr InputSpec kTokenTypes{"token_types", {InputSize::kRows, InputSize::kTokens}};
// Last stage, where the input has a second term.
inline constexpr InputSpec kSentenceLabels{"sentence_labels", {InputSize::kRows}};
}  // namespace input

// A term without an objective beside the sentences' loss: how many of them a BERT tells right, of those that count.
inline constexpr const char* kSentenceAccuracy = "sop accuracy";

// The kinds of its units.
inline constexpr const char *kEmbeddingUnit = "embedding", *kLayerUnit = "layer",
                            *kPredictionUnit = "prediction module", *kHeadUnit = "head", *kStatesUnit = "states",
                            *kPooledStatesUnit = "pooled states";

// Given by the units of states.
inline constexpr const char *kStates = "states", *kPooled = "pooled";

// One embedding, the layers, the prediction modules, one head. With Llama's names when none are given.
std::vector<Unit> transformer_units(const ModelConfig& config, const TransformerNames& names);
std::vector<Unit> transformer_units(const ModelConfig& config);

class Transformer : public UnitChunk {
 public:
  // The configuration passed check_model_config() and has a vocab_size; UserErrors otherwise. The part is of
  // transformer_units().
  Transformer(const ModelConfig& config, TransformerNames names, const LayerContext& context, const ModelPart& part);

 protected:
  void make_unit(const Unit& unit, const LayerContext& context, int64_t layer) override;
  std::shared_ptr<UnitPass> make_pass(const ModelInput& input, const ForwardContext& context) const override;
  int64_t num_rows(const std::string& tensor, const ForwardContext& context) const override;

 private:
  TransformerNames names_;
  std::shared_ptr<const LayerViewer> viewer_;
};

// With Llama's names: how a family builds whose class has them.
std::unique_ptr<Model> build_transformer(const ModelConfig& config, const LayerContext& context, const ModelPart& part);

}  // namespace megalith
