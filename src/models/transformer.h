// The chunk in a pipeline stage of a one-stack transformer (decoder or BERT), built from a range of its units:
// embedding (with positions and token types), layers, multi-token prediction modules, head (with the final norm, and a
// BERT's further layers).
//
// Canonical names are the family's Hugging Face class's (TransformerNames). One tensor travels between units, "hidden"
// (t, h): the residual stream.
//
// A chunk may end in states instead of a head (models/states_units.h): its ModelOutput::boundary has kStates (t, h), a
// head's input, and with a pooler kPooled (b, h). Without sequence parallelism.
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
// Last stage, if the input has a second term.
inline constexpr InputSpec kSentenceLabels{"sentence_labels", {InputSize::kRows}};
}  // namespace input

// Term without an objective: sentences a BERT classifies correctly, of those that count.
inline constexpr const char* kSentenceAccuracy = "sop accuracy";

inline constexpr const char *kEmbeddingUnit = "embedding", *kLayerUnit = "layer",
                            *kPredictionUnit = "prediction module", *kHeadUnit = "head", *kStatesUnit = "states",
                            *kPooledStatesUnit = "pooled states";

// Outputs of the states units.
inline constexpr const char *kStates = "states", *kPooled = "pooled";

// One embedding, the layers, prediction modules, one head. Llama's names by default.
std::vector<Unit> transformer_units(const ModelConfig& config, const TransformerNames& names);
std::vector<Unit> transformer_units(const ModelConfig& config);

class Transformer : public UnitChunk {
 public:
  // UserErrors when config fails check_model_config() or lacks vocab_size. part: of transformer_units().
  Transformer(const ModelConfig& config, TransformerNames names, const LayerContext& context, const ModelPart& part);

 protected:
  void make_unit(const Unit& unit, const LayerContext& context, int64_t layer) override;
  std::shared_ptr<UnitPass> make_pass(const ModelInput& input, const ForwardContext& context) const override;
  int64_t num_rows(const std::string& tensor, const ForwardContext& context) const override;

 private:
  TransformerNames names_;
  std::shared_ptr<const LayerViewer> viewer_;
};

std::unique_ptr<Model> build_transformer(const ModelConfig& config, const LayerContext& context, const ModelPart& part);

}  // namespace megalith
