#include "nn/decoder_layer.h"

namespace megalith {

DecoderLayer::DecoderLayer(const LayerContext& context, const std::string& name, const DecoderLayerOptions& options)
    : input_norm_(context, name + ".input_layernorm", options.attention.hidden, options.norm_eps),
      attention_(context, name + ".self_attn", options.attention),
      mlp_norm_(context, name + ".post_attention_layernorm", options.attention.hidden, options.norm_eps),
      mlp_(context, name + ".mlp", options.mlp),
      attention_dropout_(context, name + ".self_attn.output", options.hidden_dropout),
      mlp_dropout_(context, name + ".mlp.output", options.hidden_dropout) {
  register_module(input_norm_);
  register_module(attention_);
  register_module(mlp_norm_);
  register_module(mlp_);
}

ResidualStream DecoderLayer::forward(ResidualStream stream, const ForwardContext& forward, const RotaryAngles& angles) {
  const at::Tensor attended = attention_.forward(input_norm_.forward(stream), forward, angles);
  stream.delta = attention_dropout_.forward(attended, forward);
  const at::Tensor transformed = mlp_.forward(mlp_norm_.forward(stream));
  stream.delta = mlp_dropout_.forward(transformed, forward);
  return stream;
}

}  // namespace megalith
