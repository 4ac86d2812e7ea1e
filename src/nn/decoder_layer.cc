#include "nn/decoder_layer.h"

#include <utility>

namespace megalith {

namespace {

std::unique_ptr<AttentionLayer> make_attention(const LayerContext& context, const std::string& name,
                                               const LayerOptions& options, const DecoderSite& site) {
  if (options.multi_latent_attention) {
    const LatentAttentionSite latent{.output_init_std = site.output_init_std, .layer = site.layer};
    return std::make_unique<LatentAttention>(context, name, options, latent);
  }
  const AttentionSite heads{.names = site.attention,
                            .is_transposed = site.is_transposed,
                            .output_init_std = site.output_init_std,
                            .layer = site.layer};
  return std::make_unique<SelfAttention>(context, name, options, heads);
}

}  // namespace

DecoderLayer::DecoderLayer(const LayerContext& context, const std::string& name, const LayerOptions& options,
                           const DecoderSite& site)
    : name_(name),
      policy_(context.recompute),
      input_norm_(context, name + "." + site.names.input_norm, options.hidden_size, options),
      attention_(make_attention(context, name + "." + site.names.attention, options, site)),
      mlp_norm_(context, name + "." + site.names.mlp_norm, options.hidden_size, options),
      attention_dropout_(context, name + "." + site.names.attention + ".output", options.hidden_dropout),
      mlp_dropout_(context, name + "." + site.names.mlp + ".output", options.hidden_dropout) {
  const std::string mlp_name = name + "." + site.names.mlp;
  if (site.has_experts) {
    const MoeSite experts{.names = site.experts, .output_init_std = site.output_init_std, .layer = site.layer};
    auto layer = std::make_unique<MoeLayer>(context, mlp_name, options, experts);
    experts_ = layer.get();
    mlp_ = std::move(layer);
  } else {
    const MlpSite mlp{.names = site.mlp, .is_transposed = site.is_transposed, .output_init_std = site.output_init_std};
    mlp_ = std::make_unique<Mlp>(context, mlp_name, options, mlp);
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
