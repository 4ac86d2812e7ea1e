#include "nn/encoder_decoder_layer.h"

#include <utility>

namespace megalith {

namespace {

AttentionSite attention_site(const CrossDecoderSite& site) {
  return {.names = site.attention, .output_init_std = site.output_init_std, .layer = site.layer};
}

}  // namespace

CrossDecoderLayer::CrossDecoderLayer(const LayerContext& context, const std::string& name, const LayerOptions& options,
                                     const CrossDecoderSite& site)
    : policy_(context.recompute),
      attention_norm_(context, name + "." + site.names.attention_norm, options.hidden_size, options),
      attention_(context, name + "." + site.names.attention, options, attention_site(site)),
      cross_norm_(context, name + "." + site.names.cross_norm, options.hidden_size, options),
      cross_(context, name + "." + site.names.cross_attention, options, attention_site(site)),
      mlp_norm_(context, name + "." + site.names.mlp_norm, options.hidden_size, options),
      attention_dropout_(context, name + "." + site.names.attention + ".output", options.hidden_dropout),
      cross_dropout_(context, name + "." + site.names.cross_attention + ".output", options.hidden_dropout),
      mlp_dropout_(context, name + "." + site.names.mlp + ".output", options.hidden_dropout) {
  const std::string mlp_name = name + "." + site.names.mlp;
  if (site.has_experts) {
    const MoeSite experts{.names = site.experts, .output_init_std = site.output_init_std, .layer = site.layer};
    auto layer = std::make_unique<MoeLayer>(context, mlp_name, options, experts);
    experts_ = layer.get();
    mlp_ = std::move(layer);
  } else {
    const MlpSite mlp{.names = site.linears, .output_init_std = site.output_init_std};
    mlp_ = std::make_unique<Mlp>(context, mlp_name, options, mlp);
  }
  register_module(attention_norm_);
  register_module(attention_);
  register_module(cross_norm_);
  register_module(cross_);
  register_module(mlp_norm_);
  register_module(*mlp_);
}

Activation CrossDecoderLayer::normed(Norm& norm, ResidualStream& stream) const {
  Activation y = norm.forward(stream);
  if (policy_.norms) y.kept = norm.again(Kept(stream.residual));
  return y;
}

ResidualStream CrossDecoderLayer::forward(ResidualStream stream, const EncoderMemory& memory,
                                          const ForwardContext& forward) {
  const at::Tensor attended = attention_.forward(normed(attention_norm_, stream), forward, {});
  stream.delta = attention_dropout_.forward(attended, forward);
  const at::Tensor read = cross_.forward(normed(cross_norm_, stream), memory, forward);
  stream.delta = cross_dropout_.forward(read, forward);
  const at::Tensor transformed = mlp_->forward(normed(mlp_norm_, stream), forward);
  stream.delta = mlp_dropout_.forward(transformed, forward);
  return stream;
}

}  // namespace megalith
