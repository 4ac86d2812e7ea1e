// CLIP's text encoder: causal layers, read at the end of the text. Frozen.
//
//   x = token + position;  x += attention(norm(x));  x += mlp(norm(x));  pooled = final_norm(x) at the end token
//
// Names are those of transformers' CLIPTextModel. Source: Radford et al. 2021, arXiv:2103.00020; transformers'
// models/clip/modeling_clip.py.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string_view>
#include <vector>

#include "models/frozen_layers.h"

namespace megalith {

// Defaults: CLIP ViT-L/14, as in FLUX.1.
struct ClipTextConfig {
  int64_t vocab_size = 49408;
  int64_t hidden_size = 768, intermediate_size = 3072;
  int64_t num_hidden_layers = 12, num_attention_heads = 12;
  int64_t max_position_embeddings = 77;
  bool has_quick_gelu = true;  // x * sigmoid(1.702 x) instead of GELU
  double layer_norm_eps = 1e-5;
  // Old files wrongly say 2: the largest id then ends a text, as CLIP's end token is.
  int64_t eos_token_id = 2;
};

// From config.json of a CLIPTextModel, or the text_config of a CLIPModel. Throws all UserErrors at once: values not
// supported, sizes out of bounds.
ClipTextConfig read_clip_text_config(const nlohmann::json& json, std::string_view where);

class ClipLayer;  // clip_text.cc

class ClipText : public Module {
 public:
  ClipText(const ClipTextConfig& config, const FrozenContext& context);
  ~ClipText() override;

  struct Output {
    at::Tensor states;  // (b, s, hidden_size), after the last norm
    at::Tensor pooled;  // (b, hidden_size): state of the first end-of-text token
  };
  // ids (b, s) int64, s <= max_position_embeddings; padding after the end does not affect `pooled`
  Output forward(const at::Tensor& ids) const;
  const ClipTextConfig& config() const { return config_; }

 private:
  ClipTextConfig config_;
  FrozenTable tokens_, positions_;
  std::vector<std::unique_ptr<ClipLayer>> layers_;
  FrozenLayerNorm final_norm_;
};

}  // namespace megalith
