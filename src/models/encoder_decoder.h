// An encoder-decoder's chunk in a pipeline stage, built from a range of its units: encoder embedding, layers and norm;
// decoder embedding, layers and head (with the decoder's norm).
//
//   stage 0    encoder's embedding, layers               gives hidden
//   stage 1    encoder's layers, norm                    gives memory
//   stage 2    decoder's embedding, layers               reads memory; gives hidden and memory
//   stage 3    decoder's layers, head                    reads hidden and memory
//
// Both stacks and a tied head share one vocabulary table; the stacks share learned positions. Relative positions have a
// table in each stack, named after its first layer: a block computes the bias of all its layers once. Where linear
// layers have biases a tied output has one too, as in Megatron-LM's T5. Names are Hugging Face's T5's
// (EncoderDecoderNames).
//
// moe_layer_freq counts layers through both stacks, the encoder's first.
//
// A list that ends after the encoder's norm is an encoder by itself (models/states_units.h): its ModelOutput::boundary
// has kMemory (t, h); the decoder's inputs are not read.
//
// A ModelInput has the decoder's tokens, labels and context; context.encoder_s; and the encoder's in `more`.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "models/input_spec.h"
#include "models/model.h"
#include "nn/decoder_layer.h"
#include "nn/encoder_decoder_layer.h"

namespace megalith {

namespace input {
inline constexpr InputSpec kEncoderTokens{"encoder_tokens", {InputSize::kRows, InputSize::kEncoderTokens}};
// All units: index of the first padding token. Absent: no padding.
inline constexpr InputSpec kEncoderKeyLengths{"encoder_key_lengths", {InputSize::kRows}};
// Encoder's layers: global number of each token, distinct from the decoder's. Absent without dropout.
inline constexpr InputSpec kEncoderRowIds{"encoder_row_ids", {InputSize::kRows, InputSize::kEncoderTokens}};
}  // namespace input
inline constexpr InputSpec kEncoderInputs[] = {input::kEncoderTokens, input::kEncoderKeyLengths, input::kEncoderRowIds};

inline constexpr const char* kMemory = "memory";

// Canonical names; defaults: Hugging Face's T5.
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
  // Experts' linears are named as the MLP's.
  std::string router = "router", router_bias = "router.e_score_correction_bias";
  std::string encoder_norm = "encoder.final_layer_norm", decoder_norm = "decoder.final_layer_norm", head = "lm_head";
};

inline constexpr const char *kEncoderEmbeddingUnit = "encoder embedding", *kEncoderLayerUnit = "encoder layer",
                            *kEncoderNormUnit = "encoder norm", *kDecoderEmbeddingUnit = "decoder embedding",
                            *kDecoderLayerUnit = "decoder layer", *kDecoderHeadUnit = "decoder head";

std::vector<Unit> encoder_decoder_units(const ModelConfig& config);

// UserErrors when config fails check_model_config(), lacks vocab_size, or context parallelism is on. part: of
// encoder_decoder_units().
std::unique_ptr<Model> build_encoder_decoder(const ModelConfig& config, const LayerContext& context,
                                             const ModelPart& part);

}  // namespace megalith
