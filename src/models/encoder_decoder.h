// The chunk of an encoder and decoder that a pipeline stage holds, built from a range of the model's units: the
// encoder's embedding, layers and norm, the decoder's embedding and layers, head (with the decoder's norm).
//
//   stage 0    encoder's embedding, layers               gives hidden
//   stage 1    encoder's layers, norm                    gives memory
//   stage 2    decoder's embedding, layers               reads memory; gives hidden and memory
//   stage 3    decoder's layers, head                    reads hidden and memory
//
// Both stacks and a tied head use one table of the vocabulary. With relative positions each stack has one table of
// them, which its first layer's name owns and all its layers use: a block computes what they add to the scores once,
// and its gradient is the sum over the layers. Learned positions have one table for both stacks. Where linear layers
// have biases, a tied output has one too, as that of Megatron-LM's T5. Names are those of Hugging Face's T5
// (EncoderDecoderNames).
//
// Layers with experts (moe_layer_freq) are counted through both stacks, the encoder's first.
//
// A list that ends behind the encoder's norm is an encoder by itself (states_units(), models/families.h): its
// ModelOutput::boundary has "memory" (t, h), and it reads nothing of the decoder's.
//
// A ModelInput has the decoder's tokens, labels and context; context.encoder_s; and in `more`
//   encoder_tokens       (b, encoder_s) int64; where the encoder's embedding is
//   encoder_key_lengths  (b) int64: tokens from this index on are padding; everywhere; absent: none are
//   encoder_row_ids      (b, encoder_s) int64: global number of each token, none of which is a token of the decoder;
//                        where the encoder's layers are; absent without dropout
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/model.h"
#include "nn/decoder_layer.h"
#include "nn/dropout.h"
#include "nn/embedding.h"
#include "nn/encoder_decoder_layer.h"
#include "nn/lm_head.h"
#include "nn/norm.h"
#include "nn/relative_bias.h"

namespace megalith {

// Canonical names; the defaults are those of Hugging Face's T5.
struct EncoderDecoderNames {
  std::string embedding = "shared";                      // without `.weight`
  std::string positions = "shared_position_embeddings";  // likewise, of learned ones
  std::vector<std::string> embedding_aliases = {"encoder.embed_tokens", "decoder.embed_tokens"};
  std::string encoder_layers = "encoder.block", decoder_layers = "decoder.block";      // before the layer's number
  std::string relative_bias = "layer.0.SelfAttention.relative_attention_bias.weight";  // below the first layer's name
  DecoderNames encoder = {.input_norm = "layer.0.layer_norm",
                          .attention = "layer.0.SelfAttention",
                          .mlp_norm = "layer.1.layer_norm",
                          .mlp = "layer.1.DenseReluDense"};
  CrossDecoderNames decoder = {.attention_norm = "layer.0.layer_norm",
                               .attention = "layer.0.SelfAttention",
                               .cross_norm = "layer.1.layer_norm",
                               .cross_attention = "layer.1.EncDecAttention",
                               .mlp_norm = "layer.2.layer_norm",
                               .mlp = "layer.2.DenseReluDense"};
  AttentionNames attention = {.q = "q", .k = "k", .v = "v", .output = "o"};
  MlpNames plain = {.up = "wi", .down = "wo"}, gated = {.gate = "wi_0", .up = "wi_1", .down = "wo"};
  // An expert's linears are named as the MLP's.
  std::string router = "router", router_bias = "router.e_score_correction_bias";
  std::string encoder_norm = "encoder.final_layer_norm", decoder_norm = "decoder.final_layer_norm", head = "lm_head";
};

// The kinds of its units.
inline constexpr const char *kEncoderEmbeddingUnit = "encoder embedding", *kEncoderLayerUnit = "encoder layer",
                            *kEncoderNormUnit = "encoder norm", *kDecoderEmbeddingUnit = "decoder embedding",
                            *kDecoderLayerUnit = "decoder layer", *kDecoderHeadUnit = "decoder head";

std::vector<Unit> encoder_decoder_units(const ModelConfig& config);

class EncoderDecoder : public Model {
 public:
  // The configuration passed check_model_config() and has a vocab_size; UserErrors otherwise. The part is of
  // encoder_decoder_units(). UserError when ranks share a sequence (context parallelism).
  EncoderDecoder(const ModelConfig& config, const LayerContext& context, const ModelPart& part);

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
  CostShape shape_of(const Module& child, const CostShape& shape) const override;

 private:
  using Blocks = std::vector<Block>::const_iterator;

  // What a stack's tokens become.
  struct Embedding {
    std::unique_ptr<VocabParallelEmbedding> tokens;
    std::unique_ptr<LearnedPositions> positions;  // null without learned positions
    std::optional<HiddenDropout> dropout;
  };

  void make(const Unit& unit, const LayerContext& context);
  void make_embedding(const LayerContext& context, Embedding& embedding, const std::string& name);
  void make_encoder_layer(const Unit& unit, const LayerContext& context);
  void make_decoder_layer(const Unit& unit, const LayerContext& context);
  void make_encoder_norm(const LayerContext& context);
  void make_head(const LayerContext& context);
  // The table of a stack, made with the stack's first layer here.
  std::unique_ptr<RelativeBias> make_bias(const LayerContext& context, const std::string& layers,
                                          bool is_bidirectional);
  LayerContext layer_context(const LayerContext& context, int64_t layer) const;
  MlpNames mlp_names() const { return config_.is_gated() ? names_.gated : names_.plain; }
  ExpertNames expert_names() const;
  // A layer joins the stack's last block, or begins one. number: in the whole model.
  void add_layer(const Module& layer, const std::string& name, int64_t number, bool is_first_of_stack);
  void add_block(Block block);
  VocabularyWeight table_weight(int tp) const;
  Parameter* table() const;
  Parameter* position_table() const;
  bool is_tied() const { return !config_.untie_embeddings_and_output_weights; }
  double embedding_std() const { return config_.embedding_init_method_std.value_or(config_.init_method_std); }

  ForwardContext encoder_context(const ModelInput& input, const ForwardContext& of_decoder) const;
  at::Tensor embed(Blocks& block, const Embedding& embedding, const at::Tensor& tokens,
                   const ForwardContext& context) const;
  // What queries of a forward pass add to their scores; undefined without relative positions.
  at::Tensor bias_of(Blocks& block, RelativeBias* bias, const ForwardContext& context) const;
  ResidualStream encode(Blocks& block, ResidualStream stream, const ForwardContext& context) const;
  ResidualStream decode(Blocks& block, ResidualStream stream, const EncoderMemory& memory,
                        const ForwardContext& context) const;
  // The blocks of the encoder in this chunk, or what the stage before gave, or what a cache has kept.
  at::Tensor memory_of(Blocks& block, const ModelInput& input, const ForwardContext& context, const Bundle& boundary,
                       ResidualStream& stream) const;
  ModelOutput head_output(const ModelInput& input, ResidualStream stream, HeadOutput head) const;

  ModelConfig config_;
  EncoderDecoderNames names_;
  at::ScalarType dtype_;
  int64_t token_split_;       // ranks over which sequence parallelism splits the tokens
  int64_t first_layer_ = -1;  // of this chunk, in the whole model
  Groups::Pointer cp_;
  Embedding encoder_embedding_, decoder_embedding_;
  std::unique_ptr<RelativeBias> encoder_bias_, decoder_bias_;
  std::vector<std::unique_ptr<DecoderLayer>> encoder_;
  std::vector<std::unique_ptr<CrossDecoderLayer>> decoder_;
  int64_t first_of_encoder_ = 0, first_of_decoder_ = 0;  // numbers of these in the whole model
  std::unique_ptr<Norm> encoder_norm_, decoder_norm_;
  std::unique_ptr<LmHead> head_;
  std::vector<Block> blocks_;
};

std::unique_ptr<Model> build_encoder_decoder(const ModelConfig& config, const LayerContext& context,
                                             const ModelPart& part);

}  // namespace megalith
