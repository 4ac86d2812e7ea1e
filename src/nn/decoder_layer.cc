#include "nn/decoder_layer.h"

#include <algorithm>

namespace megalith {

namespace {

// What follows a norm that is computed again does not keep the norm's output.
AttentionOptions attention_options(AttentionOptions options, const LayerContext& context) {
  options.keeps_input = !context.recompute.norms;
  return options;
}
MlpOptions mlp_options(MlpOptions options, const LayerContext& context) {
  options.keeps_input = !context.recompute.norms;
  return options;
}

}  // namespace

DecoderLayer::DecoderLayer(const LayerContext& context, const std::string& name, const DecoderLayerOptions& options)
    : name_(name),
      recomputes_norms_(context.recompute.norms),
      input_norm_(context, name + ".input_layernorm", options.attention.hidden, options.norm_eps),
      attention_(context, name + ".self_attn", attention_options(options.attention, context)),
      mlp_norm_(context, name + ".post_attention_layernorm", options.attention.hidden, options.norm_eps),
      mlp_(context, name + ".mlp", mlp_options(options.mlp, context)),
      attention_dropout_(context, name + ".self_attn.output", options.hidden_dropout),
      mlp_dropout_(context, name + ".mlp.output", options.hidden_dropout) {
  register_module(input_norm_);
  register_module(attention_);
  register_module(mlp_norm_);
  register_module(mlp_);
}

ResidualStream DecoderLayer::forward(ResidualStream stream, const ForwardContext& forward, const RotaryAngles& angles) {
  const auto restore = [&](const RmsNorm& norm) {
    return recomputes_norms_ ? norm.recomputation(stream) : RestoreInput();
  };
  const at::Tensor attention_input = input_norm_.forward(stream);
  const at::Tensor attended = attention_.forward(attention_input, forward, angles, restore(input_norm_));
  stream.delta = attention_dropout_.forward(attended, forward);
  const at::Tensor mlp_input = mlp_norm_.forward(stream);
  const at::Tensor transformed = mlp_.forward(mlp_input, restore(mlp_norm_));
  stream.delta = mlp_dropout_.forward(transformed, forward);
  return stream;
}

// Attention's backward comes when what the MLP and its norm kept is free again.
LayerCost DecoderLayer::own_cost(const CostShape& shape) const {
  const int64_t freed = mlp_norm_.cost(shape).kept_bytes + mlp_.cost(shape).kept_bytes;
  return {.working_bytes = std::max<int64_t>(attention_.backward_bytes(shape) - freed, 0)};
}

}  // namespace megalith
