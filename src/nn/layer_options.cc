#include "nn/layer_options.h"

#include "core/error.h"
#include "nn/option_rules.h"

namespace megalith {

void LayerOptions::visit_widths(OptionVisitor& v) {
  v.field("hidden_size", hidden_size, "Width of the residual stream.")
      .within(0, kMostWidth)
      .in_toy(InToy::kMade)
      .read_by(kAllModels);
  v.field("ffn_hidden_size", ffn_hidden_size,
          "Width inside the MLP. Default: 4 * hidden_size; with swiglu, geglu or quick_geglu, 8/3 * hidden_size "
          "rounded down to "
          "a multiple of 64.")
      .within(1, kMostFfnWidth)
      .in_toy(InToy::kMade)
      .read_by(kAllModels);
}

void LayerOptions::visit_biases(OptionVisitor& v) {
  v.field("add_bias_linear", add_bias_linear, "Biases in all linear layers.");
  v.field("disable_bias_linear", disable_bias_linear, "No biases in linear layers: the same as add_bias_linear false.");
  v.field("add_qkv_bias", add_qkv_bias, "Biases only in the query, key and value projections (Qwen).")
      .always(kPictureModels, "true");
}

void LayerOptions::visit_head_norm(OptionVisitor& v) {
  v.field("qk_layernorm", qk_layernorm,
          "Normalise each query and key head before it is rotated (Qwen3). With multi_latent_attention, normalise the "
          "latent vectors before they are projected up.")
      .read_by(kStacks)
      .always(kPictureModels, "true");
  v.choice(
       "qk_layernorm_scope", qk_layernorm_scope, {"head", "projection"},
       "What qk_layernorm normalises: head each head by itself, projection all queries of a token together, and all "
       "its keys (OLMo 2). Not read with multi_latent_attention.")
      .read_by(kStacks);
  v.field("qk_l2_norm", qk_l2_norm,
          "Divide each query and key head by its root mean square, in layers that rotate them (Llama 4).")
      .read_by(kStacks);
}

void LayerOptions::visit_random(OptionVisitor& v) {
  v.field("attention_dropout", attention_dropout, "Probability of dropping an attention weight in training.")
      .at_least(0)
      .below(1)
      .changes_weights(false)
      .always(kPictureModels, "0");
  v.field("hidden_dropout", hidden_dropout, "Probability of dropping an activation that joins the residual stream.")
      .at_least(0)
      .below(1)
      .changes_weights(false)
      .always(kPictureModels, "0");
  v.field("init_method_std", init_method_std,
          "Standard deviation of initial weights; the output projections' is divided by sqrt(2 * num_layers).")
      .at_least(0)
      .changes_weights(false)
      .toy("0.2")
      .read_by(kAllModels);
}

int64_t LayerOptions::head_dim() const {
  if (kv_channels) return *kv_channels;
  // Latent attention's heads need not divide the stream.
  return multi_latent_attention ? query_head_dim() : div_exact(hidden_size, num_attention_heads);
}

int64_t LayerOptions::ffn_size() const {
  if (ffn_hidden_size) return *ffn_hidden_size;
  // Megatron's: as many weights in three matrices as two of 4h hold.
  return is_gated() ? 8 * hidden_size / 3 / 64 * 64 : 4 * hidden_size;
}

ops::ActivationKind LayerOptions::activation() const {
  if (swiglu) return ops::ActivationKind::kSilu;
  if (geglu) return ops::ActivationKind::kGeluTanh;
  if (quick_geglu) return ops::ActivationKind::kQuickGelu;
  if (squared_relu) return ops::ActivationKind::kSquaredRelu;
  if (relu) return ops::ActivationKind::kRelu;
  const bool is_tanh = openai_gelu || (bias_gelu_fusion && has_linear_bias());
  return is_tanh ? ops::ActivationKind::kGeluTanh : ops::ActivationKind::kGelu;
}

ops::ExpertActivation LayerOptions::expert_activation() const {
  return {.kind = activation(),
          .is_gated = is_gated(),
          .up_offset = glu_linear_offset,
          .limit = activation_func_clamp_value.value_or(0)};
}

int64_t LayerOptions::shared_expert_size() const {
  if (!has_experts()) return 0;
  if (moe_shared_expert_intermediate_size) return *moe_shared_expert_intermediate_size;
  return num_shared_experts.value_or(0) * expert_ffn_size();
}

}  // namespace megalith
