#include "nn/decoder_layer.h"

#include <utility>

namespace megalith {

namespace {

std::unique_ptr<Mixer> make_mixer(const LayerContext& context, const std::string& name, const LayerOptions& options,
                                  const DecoderSite& site) {
  if (site.has_convolution) {
    const ConvolutionSite convolution{
        .names = site.convolution, .output_init_std = site.output_init_std, .layer = site.layer};
    return std::make_unique<ShortConvolution>(context, name, options, convolution);
  }
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

std::string name_of_mixer(const std::string& layer, const DecoderSite& site) {
  return layer + "." + (site.has_convolution ? site.convolution.layer : site.names.attention);
}

std::string name_of_mlp(const std::string& layer, const DecoderNames& names) {
  return names.mlp.empty() ? layer : layer + "." + names.mlp;
}

at::Tensor normed_output(Norm* norm, const at::Tensor& given) { return norm == nullptr ? given : norm->forward(given); }

}  // namespace

DecoderLayer::DecoderLayer(const LayerContext& context, const std::string& name, const LayerOptions& options,
                           const DecoderSite& site)
    : name_(name),
      policy_(context.recompute),
      norms_sums_(options.norms_sums()),
      mixer_(make_mixer(context, name_of_mixer(name, site), options, site)),
      mixer_dropout_(context, name_of_mixer(name, site) + ".output", options.hidden_dropout),
      mlp_dropout_(context, name_of_mlp(name, site.names) + ".output", options.hidden_dropout) {
  const std::string mlp_name = name_of_mlp(name, site.names);
  if (site.has_experts) {
    const MoeSite experts{.names = site.experts, .output_init_std = site.output_init_std, .layer = site.layer};
    auto layer = std::make_unique<MoeLayer>(context, mlp_name, options, experts);
    experts_ = layer.get();
    mlp_ = std::move(layer);
  } else {
    const MlpSite mlp{.names = site.mlp, .is_transposed = site.is_transposed, .output_init_std = site.output_init_std};
    mlp_ = std::make_unique<Mlp>(context, mlp_name, options, mlp);
  }
  const auto make_norm = [&](std::unique_ptr<Norm>& norm, const std::string& below) {
    norm = std::make_unique<Norm>(context, name + "." + below, options.hidden_size, options);
    register_module(*norm);
  };
  const bool in_front = options.has_norms_in_front(), behind = options.has_norms_behind();
  if (in_front) make_norm(input_norm_, site.names.input_norm);
  register_module(*mixer_);
  if (behind) make_norm(attention_output_norm_, site.names.attention_output_norm);
  if (in_front) make_norm(mlp_norm_, behind ? site.names.sandwiched_mlp_norm : site.names.mlp_norm);
  register_module(*mlp_);
  if (behind) make_norm(mlp_output_norm_, site.names.mlp_output_norm);
}

Activation DecoderLayer::input(Norm* norm, ResidualStream& stream) const {
  if (norm == nullptr) {
    stream = {.delta = {}, .residual = stream.sum()};
    return stream.residual;
  }
  Activation y = norm->forward(stream);
  if (policy_.norms) y.kept = norm->again(Kept(stream.residual));
  return y;
}

Activation DecoderLayer::normed_sum(Norm& norm, const at::Tensor& added, const at::Tensor& stream) const {
  ResidualStream sum{.delta = added, .residual = stream};
  Activation y = norm.forward(sum);
  if (policy_.norms) y.kept = norm.again(Kept(sum.residual));
  return y;
}

ResidualStream DecoderLayer::forward_normed_sums(const ResidualStream& stream, const ForwardContext& forward,
                                                 const RotaryAngles& angles) {
  const at::Tensor x = stream.sum();
  const at::Tensor mixed = mixer_dropout_.forward(mixer_->forward(x, forward, angles), forward);
  const Activation y = normed_sum(*attention_output_norm_, mixed, x);
  const at::Tensor transformed = mlp_dropout_.forward(mlp_->forward(y, forward), forward);
  return {.delta = normed_sum(*mlp_output_norm_, transformed, y.value).value, .residual = {}};
}

ResidualStream DecoderLayer::forward(ResidualStream stream, const ForwardContext& forward, const RotaryAngles& angles) {
  if (norms_sums_) return forward_normed_sums(stream, forward, angles);
  const at::Tensor mixed = mixer_->forward(input(input_norm_.get(), stream), forward, angles);
  stream.delta = mixer_dropout_.forward(normed_output(attention_output_norm_.get(), mixed), forward);
  const at::Tensor transformed = mlp_->forward(input(mlp_norm_.get(), stream), forward);
  stream.delta = mlp_dropout_.forward(normed_output(mlp_output_norm_.get(), transformed), forward);
  return stream;
}

}  // namespace megalith
