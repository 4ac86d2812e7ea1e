// Units that text models share: token embedding, layer, final norm.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "models/input_spec.h"
#include "models/transformer_names.h"
#include "models/unit_chunk.h"
#include "nn/embedding.h"

namespace megalith {

struct LayerView {
  ForwardContext context;
  RotaryAngles angles;
};

struct LayerViews {
  LayerView whole, windowed;
  std::optional<ops::AttentionMask> chunked;  // rotated layers, if chunked
  at::Tensor query_scale;                     // unrotated layers; undefined: 1
};

class LayerViewer {
 public:
  LayerViewer(const ModelConfig& config, const LayerContext& context);

  LayerViews views(const ForwardContext& context) const;
  // layer: in the whole model; prediction modules are as the last.
  LayerView view(const LayerViews& views, int64_t layer) const;

 private:
  at::Tensor positions(const ForwardContext& forward) const;  // (b or 1, s) int64
  at::Tensor query_scale(const ForwardContext& forward) const;
  RotaryAngles angles(const ForwardContext& forward, const at::Tensor& inverse_frequencies, double multiplier) const;

  ModelConfig config_;
  at::ScalarType dtype_;
  double multiplier_ = 1;
  std::vector<int64_t> windowed_, unrotated_;  // by layer: 1 windowed, or unrotated
  at::Tensor inverse_frequencies_;             // on the device; undefined without rotary positions
  at::Tensor local_frequencies_;               // of windowed layers; undefined: as the others
};

struct TextSide {
  at::Tensor tokens, token_types;  // (b, s) int64; types undefined: all 0
  ForwardContext context;
  LayerViews views;
};

struct TextPass : UnitPass {
  std::vector<TextSide> sides;  // one, or two: questions and texts, encoder and decoder
  std::shared_ptr<const LayerViewer> viewer;
};

// Undefined if absent.
at::Tensor found(const ModelInput& input, const InputSpec& spec);

// Embedding table and head weight; one canonical tensor if tied.
struct VocabularyWeights {
  VocabularyWeight table, output;
};
VocabularyWeights vocabulary_weights(const ModelConfig& config, const TransformerNames& names, const ModelPart& part,
                                     int64_t tp);
double embedding_std(const ModelConfig& config);
// Embedding rows, scaled if scale_embeddings.
at::Tensor embedded(const ModelConfig& config, VocabParallelEmbedding& table, const at::Tensor& tokens);

struct TokenEmbeddingSite {
  VocabularyWeight weight;
  Parameter* table = nullptr;  // another embedding's, to share; null: own
  std::string positions;       // without `.weight`, as the other names
  SharedRows shared_positions = {};
  std::string token_types = {}, norm = {};
  std::string dropout;  // keys it
  size_t side = 0;      // of TextPass::sides
};
void make_token_embedding(UnitModule& unit, const ModelConfig& config, const LayerContext& context,
                          const TokenEmbeddingSite& site);
void make_token_embedding(UnitModule& unit, const ModelConfig& config, const TransformerNames& names,
                          const LayerContext& context, const ModelPart& part, size_t side = 0);
void make_text_layer(UnitModule& unit, const ModelConfig& config, const TransformerNames& names,
                     const LayerContext& context, int64_t number, size_t side = 0);

// The norm after the last layer; null where layers norm their sums.
Norm* add_final_norm(UnitModule& unit, const ModelConfig& config, const TransformerNames& names,
                     const LayerContext& context);
at::Tensor normed_end(Norm* norm, ResidualStream stream);

}  // namespace megalith
