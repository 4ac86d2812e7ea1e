// One layer of a pre-norm decoder: stream += attention(norm(stream)); stream += mlp(norm(stream)), where the MLP may be
// a mixture of experts and attention may be latent.
#pragma once

#include <memory>
#include <string>
#include <variant>

#include "nn/attention.h"
#include "nn/dropout.h"
#include "nn/latent_attention.h"
#include "nn/mlp.h"
#include "nn/moe_layer.h"
#include "nn/norm.h"

namespace megalith {

// Of the canonical tensors below the layer's name.
struct DecoderNames {
  std::string input_norm = "input_layernorm", attention = "self_attn";
  std::string mlp_norm = "post_attention_layernorm", mlp = "mlp";
};

struct DecoderLayerOptions {
  int64_t hidden = 0;  // h
  std::variant<AttentionOptions, LatentAttentionOptions> attention;
  std::variant<MlpOptions, MoeOptions> mlp;
  NormOptions norm;
  double hidden_dropout = 0;  // of what each block adds to the stream
  DecoderNames names = {};
};

class DecoderLayer : public Module {
 public:
  // name  canonical: "model.layers.0", with DecoderLayerOptions::names below it
  DecoderLayer(const LayerContext& context, const std::string& name, const DecoderLayerOptions& options);

  const std::string& name() const { return name_; }
  // Null in a layer without experts.
  ExpertRouter* router() { return experts_ == nullptr ? nullptr : &experts_->router(); }

  // stream (t, h) -> (t, h); what the last block adds is left to the next norm.
  ResidualStream forward(ResidualStream stream, const ForwardContext& forward, const RotaryAngles& angles);

 private:
  // The norm of the stream; with SelectiveRecompute::norms kept as a way to compute it again.
  Activation normed(Norm& norm, ResidualStream& stream) const;

  std::string name_;
  SelectiveRecompute policy_;
  Norm input_norm_;
  std::unique_ptr<AttentionLayer> attention_;
  Norm mlp_norm_;
  std::unique_ptr<FeedForward> mlp_;
  MoeLayer* experts_ = nullptr;  // mlp_, where it is one
  HiddenDropout attention_dropout_, mlp_dropout_;
};

}  // namespace megalith
