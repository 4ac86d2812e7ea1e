#include "nn/decoder_layer.h"

#include <algorithm>
#include <utility>

namespace megalith {

namespace {

std::unique_ptr<AttentionLayer> make_attention(const LayerContext& context, const std::string& name,
                                               const DecoderLayerOptions& options) {
  // What follows a norm that is computed again does not keep the norm's output.
  if (const auto* latent = std::get_if<LatentAttentionOptions>(&options.attention)) {
    LatentAttentionOptions with_input = *latent;
    with_input.keeps_input = !context.recompute.norms;
    return std::make_unique<LatentAttention>(context, name, with_input);
  }
  AttentionOptions with_input = std::get<AttentionOptions>(options.attention);
  with_input.keeps_input = !context.recompute.norms;
  return std::make_unique<SelfAttention>(context, name, with_input);
}

}  // namespace

DecoderLayer::DecoderLayer(const LayerContext& context, const std::string& name, const DecoderLayerOptions& options)
    : name_(name),
      recomputes_norms_(context.recompute.norms),
      input_norm_(context, name + "." + options.names.input_norm, options.hidden, options.norm),
      attention_(make_attention(context, name + "." + options.names.attention, options)),
      mlp_norm_(context, name + "." + options.names.mlp_norm, options.hidden, options.norm),
      attention_dropout_(context, name + "." + options.names.attention + ".output", options.hidden_dropout),
      mlp_dropout_(context, name + "." + options.names.mlp + ".output", options.hidden_dropout) {
  const std::string mlp_name = name + "." + options.names.mlp;
  if (const auto* experts = std::get_if<MoeOptions>(&options.mlp)) {
    MoeOptions with_input = *experts;
    with_input.keeps_input = !context.recompute.norms;
    auto layer = std::make_unique<MoeLayer>(context, mlp_name, with_input);
    experts_ = layer.get();
    mlp_ = std::move(layer);
  } else {
    MlpOptions with_input = std::get<MlpOptions>(options.mlp);
    with_input.keeps_input = !context.recompute.norms;
    mlp_ = std::make_unique<Mlp>(context, mlp_name, with_input);
  }
  register_module(input_norm_);
  register_module(*attention_);
  register_module(mlp_norm_);
  register_module(*mlp_);
}

ResidualStream DecoderLayer::forward(ResidualStream stream, const ForwardContext& forward, const RotaryAngles& angles) {
  const auto restore = [&](const Norm& norm) {
    return recomputes_norms_ ? norm.recomputation(stream) : RestoreInput();
  };
  const at::Tensor attention_input = input_norm_.forward(stream);
  const at::Tensor attended = attention_->forward(attention_input, forward, angles, restore(input_norm_));
  stream.delta = attention_dropout_.forward(attended, forward);
  const at::Tensor mlp_input = mlp_norm_.forward(stream);
  const at::Tensor transformed = mlp_->forward(mlp_input, forward, restore(mlp_norm_));
  stream.delta = mlp_dropout_.forward(transformed, forward);
  return stream;
}

// Attention's backward comes when what the MLP and its norm kept is free again.
LayerCost DecoderLayer::own_cost(const CostShape& shape) const {
  const int64_t freed = mlp_norm_.cost(shape).kept_bytes + mlp_->cost(shape).kept_bytes;
  return {.working_bytes = std::max<int64_t>(attention_->backward_bytes(shape) - freed, 0)};
}

}  // namespace megalith
