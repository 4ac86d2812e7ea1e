// GPT-2: LayerNorm, learned positions, GELU by a tanh, biases everywhere. Files keep the layers' matrices as (in, out),
// q, k and v in one, and those of the hub leave `transformer.` away.
// Source: Radford et al. 2019, "Language models are unsupervised multitask learners".
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json.h"
#include "models/families.h"
#include "models/hf_config.h"
#include "models/transformer.h"

namespace megalith {

namespace gpt2 {
namespace {

// The names under which transformers has the tanh form.
void check_activation(const nlohmann::json& json) {
  const auto name = json_get_or<std::string>(json, "activation_function", "gelu_new", kHfConfigFile);
  if (name == "gelu_new" || name == "gelu_pytorch_tanh") return;
  throw UserError(
      fmt::format("{}: activation_function is \"{}\", and only \"gelu_new\" can be honoured", kHfConfigFile, name),
      "this family's MLP has GELU by a tanh");
}

// One hidden_dropout stands for both.
double read_hidden_dropout(const nlohmann::json& json) {
  const auto blocks = json_get_or<double>(json, "resid_pdrop", 0.1, kHfConfigFile);
  const auto embedding = json_get_or<double>(json, "embd_pdrop", 0.1, kHfConfigFile);
  if (blocks == embedding) return blocks;
  throw UserError(fmt::format("{}: resid_pdrop is {} and embd_pdrop {}, which are one hidden_dropout here",
                              kHfConfigFile, blocks, embedding),
                  "make them equal; training from these weights, --hidden_dropout sets both");
}

ModelConfig from_hf(const nlohmann::json& json) {
  ModelConfig config;
  const auto integer = [&](std::string_view key) { return json_get<int64_t>(json, key, kHfConfigFile); };
  config.num_layers = integer("n_layer");
  config.hidden_size = integer("n_embd");
  config.num_attention_heads = integer("n_head");
  config.ffn_hidden_size = json_find<int64_t>(json, "n_inner", kHfConfigFile);
  config.max_position_embeddings = json_get_or<int64_t>(json, "n_positions", 1024, kHfConfigFile);
  read_hf_common(json, {.is_tied = true}, config);
  check_hf_sizes({config.num_layers, config.hidden_size, config.num_attention_heads, config.ffn_size(),
                  config.max_position_embeddings, *config.vocab_size});

  config.position_embedding_type = PositionEmbedding::kLearnedAbsolute;
  config.normalization = Normalization::kLayerNorm;
  config.norm_epsilon = json_get_or<double>(json, "layer_norm_epsilon", 1e-5, kHfConfigFile);
  config.add_bias_linear = true;
  config.openai_gelu = true;  // a tanh even for those who switch bias_gelu_fusion off
  config.hidden_dropout = read_hidden_dropout(json);
  config.attention_dropout = json_get_or<double>(json, "attn_pdrop", 0.1, kHfConfigFile);
  check_activation(json);
  refuse_unless(json, "scale_attn_weights", true, "scores are always divided by the root of the channels of a head");
  refuse_unless(json, "scale_attn_by_inverse_layer_idx", false, "scores are not divided by the layer's number");
  refuse_unless(json, "reorder_and_upcast_attn", false, "attention computes in float32 in its own order");
  refuse_unless(json, "add_cross_attention", false, "there is no encoder to attend to");
  return config;
}

nlohmann::json to_hf(const ModelConfig& config, at::ScalarType dtype) {
  nlohmann::json json = write_hf_common(config, dtype);
  json.update({
      {"architectures", {"GPT2LMHeadModel"}},
      {"model_type", "gpt2"},
      {"n_layer", config.num_layers},
      {"n_embd", config.hidden_size},
      {"n_head", config.num_attention_heads},
      {"n_inner", nullptr},
      {"n_positions", config.max_position_embeddings},
      {"activation_function", "gelu_new"},
      {"layer_norm_epsilon", config.norm_epsilon},
      {"resid_pdrop", config.hidden_dropout},
      {"embd_pdrop", config.hidden_dropout},
      {"attn_pdrop", config.attention_dropout},
      {"scale_attn_weights", true},
      {"scale_attn_by_inverse_layer_idx", false},
      {"reorder_and_upcast_attn", false},
  });
  if (config.ffn_hidden_size) json["n_inner"] = *config.ffn_hidden_size;
  return json;
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

extern const ModelFamily kGpt2;
const ModelFamily kGpt2 = {.name = "gpt2",
                           .hf_model_type = "gpt2",
                           .hf_class = "GPT2LMHeadModel",
                           .from_hf = gpt2::from_hf,
                           .to_hf = gpt2::to_hf,
                           .units = gpt2::units,
                           .build = gpt2::build};

}  // namespace megalith
