// The units from which decoders, BERTs and retrieval models are built: the embedding of tokens and a layer of a stack,
// and what a pass over sequences of text shares among them.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "models/transformer_names.h"
#include "models/unit_chunk.h"
#include "nn/dropout.h"
#include "nn/embedding.h"

namespace megalith {

// What a layer sees, and how it rotates.
struct LayerView {
  ForwardContext context;
  RotaryAngles angles;
};

// The views of a pass, most of which layers share, by kind of layer.
struct LayerViews {
  LayerView whole, windowed;
  std::optional<ops::AttentionMask> chunked;  // of layers that rotate, where they have chunks
  at::Tensor query_scale;                     // of layers that do not rotate; undefined: 1
};

class LayerViewer {
 public:
  LayerViewer(const ModelConfig& config, const LayerContext& context);

  LayerViews views(const ForwardContext& context) const;
  // layer: in the whole model. Those of prediction modules are as the last.
  LayerView view(const LayerViews& views, int64_t layer) const;

 private:
  at::Tensor positions(const ForwardContext& forward) const;  // (b or 1, s) int64
  at::Tensor query_scale(const ForwardContext& forward) const;
  RotaryAngles angles(const ForwardContext& forward, const at::Tensor& inverse_frequencies, double multiplier) const;

  ModelConfig config_;
  at::ScalarType dtype_;
  double multiplier_ = 1;
  std::vector<int64_t> windowed_, unrotated_;  // one entry a layer: 1 with a window, or without rotation
  at::Tensor inverse_frequencies_;             // on the device; undefined without rotary positions
  at::Tensor local_frequencies_;               // of layers with a window; undefined where they rotate as the others do
};

// One set of sequences that a pass reads.
struct TextSide {
  at::Tensor tokens, token_types;  // (b, s) int64; types undefined: all 0
  ForwardContext context;
  LayerViews views;
};

struct TextPass : UnitPass {
  std::vector<TextSide> sides;  // one, or those of a retrieval model
  std::shared_ptr<const LayerViewer> viewer;
};

// The embedding's table, and the head's weight: the same canonical tensor when they are tied.
struct VocabularyWeights {
  VocabularyWeight table, output;
};
VocabularyWeights vocabulary_weights(const ModelConfig& config, const TransformerNames& names, const ModelPart& part,
                                     int64_t tp);
double embedding_std(const ModelConfig& config);
// The rows of a table of the vocabulary, scaled as scale_embeddings says.
at::Tensor embedded(const ModelConfig& config, VocabParallelEmbedding& table, const at::Tensor& tokens);

// side: of TextPass::sides, whose tokens it reads.
std::unique_ptr<UnitModule> make_token_embedding(const ModelConfig& config, const TransformerNames& names,
                                                 const LayerContext& context, const ModelPart& part, size_t side = 0);
std::unique_ptr<UnitModule> make_text_layer(const ModelConfig& config, const TransformerNames& names,
                                            const LayerContext& context, const Unit& unit, size_t side = 0);

}  // namespace megalith
