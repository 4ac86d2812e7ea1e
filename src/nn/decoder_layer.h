// One layer of a pre-norm decoder: stream += attention(norm(stream)); stream += mlp(norm(stream)).
#pragma once

#include <string>

#include "nn/attention.h"
#include "nn/dropout.h"
#include "nn/mlp.h"
#include "nn/norm.h"

namespace megalith {

struct DecoderLayerOptions {
  AttentionOptions attention;
  MlpOptions mlp;
  double norm_eps = 1e-5;
  double hidden_dropout = 0;  // of what each block adds to the stream
};

class DecoderLayer : public Module {
 public:
  // name  canonical: "model.layers.0", with input_layernorm, self_attn, post_attention_layernorm and mlp below it
  DecoderLayer(const LayerContext& context, const std::string& name, const DecoderLayerOptions& options);

  const std::string& name() const { return name_; }

  // stream (t, h) -> (t, h); what the last block adds is left to the next norm.
  ResidualStream forward(ResidualStream stream, const ForwardContext& forward, const RotaryAngles& angles);

 protected:
  LayerCost own_cost(const CostShape& shape) const override;

 private:
  std::string name_;
  bool recomputes_norms_;
  RmsNorm input_norm_;
  SelfAttention attention_;
  RmsNorm mlp_norm_;
  GatedMlp mlp_;
  HiddenDropout attention_dropout_, mlp_dropout_;
};

}  // namespace megalith
