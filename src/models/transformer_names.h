// A decoder's canonical names and layer sites.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/model_config.h"
#include "nn/bert_head.h"
#include "nn/decoder_layer.h"

namespace megalith {

// Names of the family's Hugging Face class; defaults: Llama's.
struct TransformerNames {
  std::string embedding = "model.embed_tokens", positions = "model.embed_positions";  // without `.weight`
  std::string token_types = "model.embed_token_types", embedding_norm = "model.embed_norm";
  std::string layers = "model.layers";  // before the layer's number
  DecoderNames layer;
  AttentionNames attention;
  MlpNames mlp;
  ExpertNames experts;
  ConvolutionNames convolution;
  std::string final_norm = "model.norm", head = "lm_head";
  std::vector<std::string> head_bias = {};  // whole names of the logits' bias, canonical first; empty: none
  BertHeadNames bert_head = {};
  bool is_transposed = false;  // files keep layer matrices (in, out), as GPT-2's
};

// layer: in the whole model; prediction modules follow the last.
DecoderSite decoder_site(const ModelConfig& config, const TransformerNames& names, int64_t layer);

}  // namespace megalith
