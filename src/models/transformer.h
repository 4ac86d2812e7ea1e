// The chunk of a transformer of one stack of layers, a decoder or a BERT, that a pipeline stage holds, built from a
// range of the model's units: embedding (with positions and types of tokens), layers, modules of multi-token
// prediction, head (with the final norm, and what a BERT has behind it).
//
// A BERT reads ModelInput::more: "token_types" (b, s) int64 on the first stage, all 0 where it is absent, and where the
// input has a second term "sentence_labels" (b) int64 on the last.
//
// Canonical names are those of the family's Hugging Face class (TransformerNames). Between units travels one tensor,
// "hidden" (t, h): the residual stream.
//
// A chunk that ends with states in the place of a head (states_units(), models/families.h) predicts nothing. Its
// ModelOutput::boundary has "states" (t, h), what a head would read, and with a pooler "pooled" (b, h). Without sequence
// parallelism.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "models/model.h"
#include "models/prediction_module.h"
#include "models/transformer_names.h"
#include "nn/bert_head.h"
#include "nn/dropout.h"
#include "nn/embedding.h"
#include "nn/lm_head.h"
#include "nn/norm.h"

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

class Transformer : public Model {
 public:
  // The configuration passed check_model_config() and has a vocab_size; UserErrors otherwise. The part is of
  // transformer_units().
  Transformer(const ModelConfig& config, const TransformerNames& names, const LayerContext& context,
              const ModelPart& part);

  ModelOutput forward(const ModelInput& input, const Bundle& boundary, HeadOutput head) override;
  const ModelConfig& config() const override { return config_; }
  at::ScalarType dtype() const override { return dtype_; }
  std::vector<TensorSpec> boundary(const ForwardContext& context) const override;
  std::vector<std::string> added_losses() const override;
  std::vector<ObservationSpec> observations() const override;
  void after_step(const std::vector<ObservedTensor>& observed, const at::Tensor& is_made) override;
  std::map<int64_t, ExpertRouter*> routers() override;
  const std::vector<Block>& blocks() const override { return blocks_; }

 protected:
  double own_forward_flops(const CostShape& shape) const override;
  double own_frozen_flops(const CostShape& shape) const override;

 private:
  void make(const Unit& unit, const LayerContext& context, const TransformerNames& names);
  void make_embedding(const LayerContext& context, const TransformerNames& names);
  void make_layer(const Unit& unit, const LayerContext& context, const TransformerNames& names);
  void make_final_norm(const LayerContext& context, const TransformerNames& names, Block& block);
  void make_states(const LayerContext& context, const TransformerNames& names, bool has_pooler);
  void make_head(const LayerContext& context, const TransformerNames& names);
  void add_block(Block block);
  bool is_tied() const { return !config_.untie_embeddings_and_output_weights; }
  double embedding_std() const { return config_.embedding_init_method_std.value_or(config_.init_method_std); }
  at::Tensor embed(const ModelInput& input, const ForwardContext& context) const;
  // The rows of a table of the vocabulary, scaled as scale_embeddings says.
  at::Tensor embedded(VocabParallelEmbedding& table, const at::Tensor& tokens) const;
  // What a layer of a forward pass sees and how it rotates; most of it is shared, by kind of layer.
  struct LayerView {
    ForwardContext context;
    RotaryAngles angles;
  };
  struct LayerViews {
    LayerView whole, windowed;
    std::optional<ops::AttentionMask> chunked;  // of layers that rotate, where they have chunks
    at::Tensor query_scale;                     // of layers that do not rotate; undefined: 1
  };
  LayerViews layer_views(const ForwardContext& context, at::Device device) const;
  at::Tensor query_scale(const ForwardContext& forward) const;
  LayerView view_of(const LayerViews& views, int64_t layer) const;
  at::Tensor positions(const ForwardContext& forward) const;  // (b or 1, s) int64
  RotaryAngles rotary_angles(const ForwardContext& forward, const at::Tensor& inverse_frequencies,
                             double multiplier) const;
  ModelOutput head_output(const ModelInput& input, const ForwardContext& context, const LayerViews& views,
                          ResidualStream stream, HeadOutput head) const;
  Bundle states_of(const ForwardContext& context, ResidualStream stream) const;
  void add_preference_loss(const ModelInput& input, const at::Tensor& read, ModelOutput& output) const;
  void add_sentence_loss(const ModelInput& input, const at::Tensor& hidden, ModelOutput& output) const;
  void predict_further(const ModelInput& input, const ForwardContext& context, const LayerViews& views,
                       at::Tensor hidden, ModelOutput& output) const;

  ModelConfig config_;
  at::ScalarType dtype_;
  int64_t token_split_;  // ranks over which sequence parallelism splits the tokens
  Groups::Pointer cp_;
  double rotary_multiplier_ = 1;
  // For the whole model, one entry a layer: 1 with a window, or without rotation.
  std::vector<int64_t> windowed_layers_, unrotated_layers_;
  at::Tensor inverse_frequencies_;  // on the device; undefined on a meta model and without rotary positions
  at::Tensor local_frequencies_;    // of layers with a window; undefined where they rotate as the others do
  std::unique_ptr<VocabParallelEmbedding> embedding_;
  std::unique_ptr<LearnedPositions> positions_;
  std::unique_ptr<TokenTypes> token_types_;
  std::unique_ptr<Norm> embedding_norm_;
  std::optional<HiddenDropout> embedding_dropout_;
  std::vector<std::unique_ptr<DecoderLayer>> layers_;
  std::vector<int64_t> layer_numbers_;   // of each, in the whole model
  std::unique_ptr<Norm> final_norm_;     // null where the layers norm their sums
  bool gives_states_ = false;            // it ends with them, and not with a head
  std::unique_ptr<BertPooler> pooler_;   // of the states; null without one
  std::unique_ptr<BertHead> bert_head_;  // null in a decoder
  std::unique_ptr<LmHead> head_;
  std::vector<std::unique_ptr<PredictionModule>> predictions_;
  // What they embed with: embedding_, or a copy of its table where the model's first chunk is elsewhere.
  VocabParallelEmbedding* prediction_embedding_ = nullptr;
  std::unique_ptr<VocabParallelEmbedding> embedding_copy_;
  std::vector<Block> blocks_;
};

// With Llama's names: how a family builds whose class has them.
std::unique_ptr<Model> build_transformer(const ModelConfig& config, const LayerContext& context, const ModelPart& part);

}  // namespace megalith
