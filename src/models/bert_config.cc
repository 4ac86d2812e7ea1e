#include "models/bert_config.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "models/transformer.h"

namespace megalith::bert {
namespace {

constexpr std::string_view kPrefix = "bert.";

// bert.embeddings.LayerNorm.weight -> bert.embeddings.LayerNorm.gamma
std::string old_name(const std::string& name) {
  constexpr std::pair<std::string_view, std::string_view> kOld[] = {{"LayerNorm.weight", "LayerNorm.gamma"},
                                                                    {"LayerNorm.bias", "LayerNorm.beta"}};
  for (const auto& [now, before] : kOld) {
    if (name.ends_with(now)) return name.substr(0, name.size() - now.size()) + std::string(before);
  }
  return "";
}

}  // namespace

std::vector<std::string> other_names(const std::string& name) {
  std::vector<std::string> others;
  const std::string old = old_name(name);
  if (!old.empty()) others.push_back(old);
  if (!name.starts_with(kPrefix)) return others;
  others.push_back(name.substr(kPrefix.size()));
  if (!old.empty()) others.push_back(old.substr(kPrefix.size()));
  return others;
}

HfRows rows(const std::string& hf_class, const std::string& masked_class) {
  // Files that name no class have both heads, as do those to which heads are added.
  const auto read_head = [=](const Json& file, ModelConfig& config) {
    const Json* classes = find_member(file, "architectures", kHfConfigFile);
    if (classes == nullptr) return;
    config.bert_binary_head = std::find(classes->begin(), classes->end(), masked_class) == classes->end();
  };
  return hf_common_rows()
      .required("num_hidden_layers", &ModelConfig::num_layers)
      .required("hidden_size", &ModelConfig::hidden_size)
      .required("intermediate_size", &ModelConfig::ffn_hidden_size, &ModelConfig::ffn_size)
      .required("num_attention_heads", &ModelConfig::num_attention_heads)
      .field("max_position_embeddings", &ModelConfig::max_position_embeddings, 512)
      .field("type_vocab_size", &ModelConfig::num_token_types, 2,
             [](const ModelConfig& config) { return std::max<int64_t>(config.token_types(), 1); })
      .always(&ModelConfig::position_embedding_type, PositionEmbedding::kLearnedAbsolute)
      .always(&ModelConfig::normalization, Normalization::kLayerNorm)
      .field("layer_norm_eps", &ModelConfig::norm_epsilon, 1e-12)
      .always(&ModelConfig::add_bias_linear, true)
      .field("hidden_dropout_prob", &ModelConfig::hidden_dropout, 0.1)
      .field("attention_probs_dropout_prob", &ModelConfig::attention_dropout, 0.1)
      .custom("architectures", read_head,
              [=](const ModelConfig& config) {
                return Json::array({config.bert_binary_head ? hf_class : masked_class});
              })
      .always(&ModelConfig::bias_gelu_fusion, false)
      .words("hidden_act",  // one activation for the layers and the head
             {{"gelu", nullptr},
              {"gelu_new", &ModelConfig::openai_gelu},
              {"gelu_pytorch_tanh", &ModelConfig::openai_gelu}},
             "a BERT has GELU here, by the error function or by a tanh")
      .fixed("position_embedding_type", "absolute", "a BERT adds a learned vector for each position here")
      .fixed("is_decoder", false, "a BERT attends to both sides here")
      .only("add_cross_attention", false, "there is no other sequence to attend to")
      .written("pad_token_id", 0);
}

TransformerNames names(const std::string& prefix) {
  return {
      .embedding = prefix + ".embeddings.word_embeddings",
      .positions = prefix + ".embeddings.position_embeddings",
      .token_types = prefix + ".embeddings.token_type_embeddings",
      .embedding_norm = prefix + ".embeddings.LayerNorm",
      .layers = prefix + ".encoder.layer",
      .layer = {.attention = "attention",
                .mlp = "",
                .attention_output_norm = "attention.output.LayerNorm",
                .mlp_output_norm = "output.LayerNorm"},
      .attention = {.q = "self.query", .k = "self.key", .v = "self.value", .output = "output.dense"},
      .mlp = {.up = "intermediate.dense", .down = "output.dense"},
      .experts = {},
      .final_norm = prefix + ".encoder.ln",
      .head = "cls.predictions.decoder",
      .head_bias = {"cls.predictions.bias", "cls.predictions.decoder.bias"},
      .bert_head = {},
  };
}

TransformerNames megatron_names(const std::string& prefix) {
  TransformerNames names = bert::names(prefix);
  names.layer.input_norm = "attention.ln";
  names.layer.mlp_norm = names.layer.sandwiched_mlp_norm = "ln";
  return names;
}

std::unique_ptr<Model> build(const ModelConfig& config, const TransformerNames& names, const LayerContext& context,
                             const ModelPart& part) {
  auto model = std::make_unique<Transformer>(config, names, context, part);
  model->for_each_parameter([](Parameter& parameter) { parameter.add_aliases(other_names); });
  return model;
}

}  // namespace megalith::bert
