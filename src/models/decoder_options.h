// From the architecture's options to those of the layers that a decoder is built from.
#pragma once

#include <string>

#include "models/model_config.h"
#include "nn/decoder_layer.h"
#include "nn/rotary_embedding.h"

namespace megalith {

// The canonical names of a family: those of its Hugging Face class. The defaults are Llama's and its kin's.
struct TransformerNames {
  std::string embedding = "model.embed_tokens", positions = "model.embed_positions";  // without `.weight`
  std::string layers = "model.layers";                                                // before the layer's number
  DecoderNames layer;
  AttentionNames attention;
  MlpNames mlp;
  ExpertNames experts;
  std::string final_norm = "model.norm", head = "lm_head";
  bool is_transposed = false;  // files keep the layers' matrices (in, out), as GPT-2's
};

NormOptions norm_options(const ModelConfig& config);

// layer: by its number in the whole model; prediction modules count on behind the last.
DecoderLayerOptions decoder_layer_options(const ModelConfig& config, const TransformerNames& names, int64_t layer);

RotaryOptions rotary_options(const ModelConfig& config);

}  // namespace megalith
