// GPT-2: LayerNorm, learned positions, tanh GELU, biases everywhere. Files keep layer matrices as (in, out), with q, k
// and v fused; the hub's omit `transformer.`.
// Source: Radford et al. 2019, "Language models are unsupervised multitask learners".
#include "core/error.h"
#include "models/families.h"
#include "models/hf_shared_rows.h"
#include "models/transformer.h"

namespace megalith {

namespace gpt2 {
namespace {

// Our one hidden_dropout covers both.
void check_embedding_dropout(const Json& file, ModelConfig& config) {
  const auto embedding = json_get_or<double>(file, "embd_pdrop", 0.1, kHfConfigFile);
  if (config.hidden_dropout == embedding) return;
  throw UserError(fmt::format("{}: resid_pdrop is {} and embd_pdrop {}, which are one hidden_dropout here",
                              kHfConfigFile, config.hidden_dropout, embedding),
                  "make them equal; training from these weights, --hidden_dropout sets both");
}

HfRows rows() {
  return hf_common_rows()
      .required("n_layer", &ModelConfig::num_layers)
      .required("n_embd", &ModelConfig::hidden_size)
      .required("n_head", &ModelConfig::num_attention_heads)
      .field("n_inner", &ModelConfig::ffn_hidden_size, nullptr)
      .field("n_positions", &ModelConfig::max_position_embeddings, 1024)
      .always(&ModelConfig::position_embedding_type, PositionEmbedding::kLearnedAbsolute)
      .always(&ModelConfig::normalization, Normalization::kLayerNorm)
      .field("layer_norm_epsilon", &ModelConfig::norm_epsilon, 1e-5)
      .always(&ModelConfig::add_bias_linear, true)
      .field("resid_pdrop", &ModelConfig::hidden_dropout, 0.1)
      .custom("embd_pdrop", check_embedding_dropout, &ModelConfig::hidden_dropout)
      .field("attn_pdrop", &ModelConfig::attention_dropout, 0.1)
      // Names of one form; tanh GELU even with bias_gelu_fusion off.
      .words("activation_function",
             {{"gelu_new", &ModelConfig::openai_gelu}, {"gelu_pytorch_tanh", &ModelConfig::openai_gelu}},
             "this family's MLP has GELU by a tanh")
      .fixed("scale_attn_weights", true, "scores are always divided by the root of the channels of a head")
      .fixed("scale_attn_by_inverse_layer_idx", false, "scores are not divided by the layer's number")
      .fixed("reorder_and_upcast_attn", false, "attention computes in float32 in its own order")
      .only("add_cross_attention", false, "there is no encoder to attend to");
}

TransformerNames names() {
  return {
      .embedding = "transformer.wte",
      .positions = "transformer.wpe",
      .layers = "transformer.h",
      .layer = {.input_norm = "ln_1", .attention = "attn", .mlp_norm = "ln_2", .mlp = "mlp"},
      .attention = {.output = "c_proj", .fused = "c_attn"},
      .mlp = {.up = "c_fc", .down = "c_proj"},
      .experts = {},
      .final_norm = "transformer.ln_f",
      .head = "lm_head",
      .is_transposed = true,
  };
}

std::vector<Unit> units(const ModelConfig& config) { return transformer_units(config, names()); }

std::unique_ptr<Model> build(const ModelConfig& config, const LayerContext& context, const ModelPart& part) {
  auto model = std::make_unique<Transformer>(config, names(), context, part);
  model->for_each_parameter([](Parameter& parameter) { parameter.add_aliases_without("transformer."); });
  return model;
}

}  // namespace
}  // namespace gpt2

extern const ModelFamily kGpt2 = {.name = "gpt2",
                                  .hf_model_type = "gpt2",
                                  .hf_class = "GPT2LMHeadModel",
                                  .hf_rows = gpt2::rows,
                                  .units = gpt2::units,
                                  .build = gpt2::build};

}  // namespace megalith
