#include "nn/decoder_layer.h"

#include <utility>

namespace megalith {

namespace {

std::unique_ptr<AttentionLayer> make_attention(const LayerContext& context, const std::string& name,
                                               const DecoderLayerOptions& options) {
  if (const auto* latent = std::get_if<LatentAttentionOptions>(&options.attention)) {
    return std::make_unique<LatentAttention>(context, name, *latent);
  }
  return std::make_unique<SelfAttention>(context, name, std::get<AttentionOptions>(options.attention));
}

}  // namespace

DecoderLayer::DecoderLayer(const LayerContext& context, const std::string& name, const DecoderLayerOptions& options)
    : name_(name),
      policy_(context.recompute),
      input_norm_(context, name + "." + options.names.input_norm, options.hidden, options.norm),
      attention_(make_attention(context, name + "." + options.names.attention, options)),
      mlp_norm_(context, name + "." + options.names.mlp_norm, options.hidden, options.norm),
      attention_dropout_(context, name + "." + options.names.attention + ".output", options.hidden_dropout),
      mlp_dropout_(context, name + "." + options.names.mlp + ".output", options.hidden_dropout) {
  const std::string mlp_name = name + "." + options.names.mlp;
  if (const auto* experts = std::get_if<MoeOptions>(&options.mlp)) {
    auto layer = std::make_unique<MoeLayer>(context, mlp_name, *experts);
    experts_ = layer.get();
    mlp_ = std::move(layer);
  } else {
    mlp_ = std::make_unique<Mlp>(context, mlp_name, std::get<MlpOptions>(options.mlp));
  }
  register_module(input_norm_);
  register_module(*attention_);
  register_module(mlp_norm_);
  register_module(*mlp_);
}

Activation DecoderLayer::normed(Norm& norm, ResidualStream& stream) const {
  Activation y = norm.forward(stream);
  if (policy_.norms) y.kept = norm.again(Kept(stream.residual));
  return y;
}

ResidualStream DecoderLayer::forward(ResidualStream stream, const ForwardContext& forward, const RotaryAngles& angles) {
  const at::Tensor attended = attention_->forward(normed(input_norm_, stream), forward, angles);
  stream.delta = attention_dropout_.forward(attended, forward);
  const at::Tensor transformed = mlp_->forward(normed(mlp_norm_, stream), forward);
  stream.delta = mlp_dropout_.forward(transformed, forward);
  return stream;
}

}  // namespace megalith
