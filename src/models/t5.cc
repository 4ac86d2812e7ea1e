// T5: an encoder and a decoder with RMSNorm, no biases, scores that are not scaled, and relative positions. Version 1.0
// has an MLP of ReLU and a tied output that is scaled; 1.1 one with gates of GELU and an output of its own.
// Source: Raffel et al. 2019, arXiv:1910.10683; 1.1 is Shazeer 2020, arXiv:2002.05202, section 3.
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json.h"
#include "models/encoder_decoder.h"
#include "models/families.h"
#include "models/hf_config.h"

namespace megalith {

namespace t5 {
namespace {

// Tokens have no last position; data of the authors are cut to this.
constexpr int64_t kPublishedLength = 512;

void read_activation(const Json& json, ModelConfig& config) {
  const auto form = json_get_or<std::string>(json, "feed_forward_proj", "relu", kHfConfigFile);
  if (form == "relu") {
    config.relu = true;
  } else if (form == "gated-gelu") {
    config.geglu = true;
  } else {
    throw UserError(fmt::format("{}: feed_forward_proj is \"{}\", and only \"relu\" and \"gated-gelu\" can be honoured",
                                kHfConfigFile, form),
                    "this family's MLP has ReLU, or gates of GELU by a tanh");
  }
}

ModelConfig from_hf(const Json& json) {
  ModelConfig config;
  const auto integer = [&](std::string_view key) { return json_get<int64_t>(json, key, kHfConfigFile); };
  config.model_type = ModelType::kT5;
  config.num_layers = integer("num_layers");
  config.decoder_num_layers = json_find<int64_t>(json, "num_decoder_layers", kHfConfigFile);
  config.hidden_size = integer("d_model");
  config.num_attention_heads = integer("num_heads");
  config.kv_channels = integer("d_kv");
  config.ffn_hidden_size = integer("d_ff");
  config.max_position_embeddings = json_get_or<int64_t>(json, "n_positions", kPublishedLength, kHfConfigFile);
  read_hf_common(json, {.is_tied = true}, config);
  check_hf_sizes({config.num_layers, config.num_decoder_layers(), config.hidden_size, config.num_attention_heads,
                  *config.kv_channels, *config.ffn_hidden_size, config.max_position_embeddings, *config.vocab_size});

  config.position_embedding_type = PositionEmbedding::kRelative;
  config.relative_attention_num_buckets =
      json_get_or<int64_t>(json, "relative_attention_num_buckets", 32, kHfConfigFile);
  config.relative_attention_max_distance =
      json_get_or<int64_t>(json, "relative_attention_max_distance", 128, kHfConfigFile);
  config.normalization = Normalization::kRmsNorm;
  config.norm_epsilon = json_get_or<double>(json, "layer_norm_epsilon", 1e-6, kHfConfigFile);
  config.add_bias_linear = false;
  config.query_pre_attn_scalar = 1;
  config.scale_decoder_outputs =
      json_get_or<bool>(json, "scale_decoder_outputs", !config.untie_embeddings_and_output_weights, kHfConfigFile);
  config.attention_dropout = config.hidden_dropout = json_get_or<double>(json, "dropout_rate", 0.1, kHfConfigFile);
  // What the decoder's text begins with.
  config.bos_token_id = json_find<int64_t>(json, "decoder_start_token_id", kHfConfigFile);
  if (!config.bos_token_id) config.bos_token_id = json_get_or<int64_t>(json, "pad_token_id", 0, kHfConfigFile);
  read_activation(json, config);
  return config;
}

Json to_hf(const ModelConfig& config, at::ScalarType dtype) {
  if (config.group_query_attention && config.num_kv_heads() != config.num_attention_heads) {
    throw UserError(
        fmt::format("num_query_groups {} has no form in {} of this family", config.num_kv_heads(), kHfConfigFile),
        "only models whose heads have keys and values of their own can be exported");
  }
  const bool is_tied = !config.untie_embeddings_and_output_weights;
  if (config.scale_decoder_outputs != is_tied) {
    throw UserError("scale_decoder_outputs goes with a tied output in this family's class, and only with one",
                    "set scale_decoder_outputs to the opposite of untie_embeddings_and_output_weights");
  }
  Json json = write_hf_common(config, dtype);
  const int64_t start = config.bos_token_id.value_or(0);
  json.erase("bos_token_id");
  json.update({
      {"architectures", {"T5ForConditionalGeneration"}},
      {"model_type", "t5"},
      {"is_encoder_decoder", true},
      {"num_layers", config.num_layers},
      {"num_decoder_layers", config.num_decoder_layers()},
      {"d_model", config.hidden_size},
      {"num_heads", config.num_attention_heads},
      {"d_kv", config.head_dim()},
      {"d_ff", config.ffn_size()},
      {"n_positions", config.max_position_embeddings},
      {"relative_attention_num_buckets", config.relative_attention_num_buckets},
      {"relative_attention_max_distance", config.relative_attention_max_distance},
      {"layer_norm_epsilon", config.norm_epsilon},
      {"dropout_rate", config.hidden_dropout},
      {"feed_forward_proj", config.geglu ? "gated-gelu" : "relu"},
      {"scale_decoder_outputs", is_tied},
      {"pad_token_id", start},
      {"decoder_start_token_id", start},
  });
  return json;
}

}  // namespace
}  // namespace t5

extern const ModelFamily kT5, kMegatronT5;
const ModelFamily kT5 = {.name = "t5",
                         .model_type = ModelType::kT5,
                         .hf_model_type = "t5",
                         .hf_class = "T5ForConditionalGeneration",
                         .other_classes = {"T5EncoderModel"},
                         .from_hf = t5::from_hf,
                         .to_hf = t5::to_hf,
                         .units = encoder_decoder_units,
                         .build = build_encoder_decoder};

// What flags describe and Hugging Face's class does not say; the names are the same.
const ModelFamily kMegatronT5 = {.name = "megatron_t5",
                                 .model_type = ModelType::kT5,
                                 .hf_model_type = "",
                                 .hf_class = "",
                                 .from_hf = nullptr,
                                 .to_hf = nullptr,
                                 .units = encoder_decoder_units,
                                 .build = build_encoder_decoder};

}  // namespace megalith
