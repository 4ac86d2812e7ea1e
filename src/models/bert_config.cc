// See bert_config.h.
#include "models/bert_config.h"

#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/json.h"
#include "models/hf_config.h"
#include "models/transformer.h"

namespace megalith::bert {
namespace {

constexpr const char *kGeluErf = "gelu", *kGeluTanh = "gelu_new";
constexpr std::string_view kPrefix = "bert.";

// The classes have one activation for the layers and the head.
void read_activation(const Json& json, ModelConfig& config) {
  const auto name = json_get_or<std::string>(json, "hidden_act", kGeluErf, kHfConfigFile);
  config.bias_gelu_fusion = false;
  config.openai_gelu = name == kGeluTanh || name == "gelu_pytorch_tanh";
  if (config.openai_gelu || name == kGeluErf) return;
  throw UserError(
      fmt::format("{}: hidden_act is \"{}\", expected \"{}\" or \"{}\"", kHfConfigFile, name, kGeluErf, kGeluTanh),
      "a BERT has GELU here, by the error function or by a tanh");
}

// A class without the classifier of sentences says that there is none; a file that names no class is of the one with
// both heads, as is one whose heads are to be added.
bool has_binary_head(const Json& json, const Network& network) {
  const Json* classes = find_member(json, "architectures", kHfConfigFile);
  if (classes == nullptr) return true;
  for (const Json& name : *classes) {
    if (name == network.masked_class) return false;
  }
  return true;
}

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

ModelConfig read(const Json& json, const Network& network) {
  ModelConfig config;
  const auto integer = [&](std::string_view key) { return json_get<int64_t>(json, key, kHfConfigFile); };
  const auto number = [&](std::string_view key, double otherwise) {
    return json_get_or<double>(json, key, otherwise, kHfConfigFile);
  };
  config.model_type = ModelType::kBert;
  config.num_layers = integer("num_hidden_layers");
  config.hidden_size = integer("hidden_size");
  config.ffn_hidden_size = integer("intermediate_size");
  config.num_attention_heads = integer("num_attention_heads");
  config.max_position_embeddings = json_get_or<int64_t>(json, "max_position_embeddings", 512, kHfConfigFile);
  config.num_token_types = json_get_or<int64_t>(json, "type_vocab_size", 2, kHfConfigFile);
  read_hf_common(json, {.is_tied = true}, config);
  check_hf_sizes({config.num_layers, config.hidden_size, *config.ffn_hidden_size, config.num_attention_heads,
                  config.max_position_embeddings, *config.num_token_types, *config.vocab_size});

  config.position_embedding_type = PositionEmbedding::kLearnedAbsolute;
  config.normalization = Normalization::kLayerNorm;
  config.norm_placement = network.norm_placement;
  config.embedding_norm = network.embedding_norm;
  config.norm_epsilon = number("layer_norm_eps", 1e-12);
  config.add_bias_linear = true;
  config.hidden_dropout = number("hidden_dropout_prob", 0.1);
  config.attention_dropout = number("attention_probs_dropout_prob", 0.1);
  config.bert_binary_head = has_binary_head(json, network);
  read_activation(json, config);
  refuse_unless(json, "position_embedding_type", "absolute", "a BERT adds a learned vector for each position here");
  refuse_unless(json, "is_decoder", false, "a BERT attends to both sides here");
  refuse_unless(json, "add_cross_attention", false, "there is no other sequence to attend to");
  return config;
}

Json write(const ModelConfig& config, at::ScalarType dtype, const Network& network) {
  Json json = write_hf_common(config, dtype);
  json.update({
      {"architectures", {config.bert_binary_head ? network.hf_class : network.masked_class}},
      {"model_type", network.model_type},
      {"num_hidden_layers", config.num_layers},
      {"hidden_size", config.hidden_size},
      {"intermediate_size", config.ffn_size()},
      {"num_attention_heads", config.num_attention_heads},
      {"hidden_act", config.openai_gelu ? kGeluTanh : kGeluErf},
      {"max_position_embeddings", config.max_position_embeddings},
      {"type_vocab_size", std::max<int64_t>(config.token_types(), 1)},
      {"layer_norm_eps", config.norm_epsilon},
      {"hidden_dropout_prob", config.hidden_dropout},
      {"attention_probs_dropout_prob", config.attention_dropout},
      {"position_embedding_type", "absolute"},
      {"is_decoder", false},
      {"pad_token_id", 0},
  });
  return json;
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
