// T5: an encoder and a decoder with RMSNorm, no biases, unscaled scores, and relative positions. 1.0 has a ReLU MLP and
// a scaled, tied output; 1.1 gated GELU and its own output.
// Source: Raffel et al. 2019, arXiv:1910.10683; 1.1 is Shazeer 2020, arXiv:2002.05202, section 3.
#include "core/error.h"
#include "models/encoder_decoder.h"
#include "models/families.h"
#include "models/hf_shared_rows.h"

namespace megalith {

namespace t5 {
namespace {

// Positions are unbounded; the authors' data are cut to this.
constexpr int64_t kPublishedLength = 512;

int64_t ungrouped_heads(const ModelConfig& config) {
  if (config.num_kv_heads() == config.num_attention_heads) return config.num_attention_heads;
  throw UserError(
      fmt::format("num_query_groups {} has no form in {} of this family", config.num_kv_heads(), kHfConfigFile),
      "only models whose heads have keys and values of their own can be exported");
}

bool is_tied(const ModelConfig& config) { return !config.untie_embeddings_and_output_weights; }

bool scales_tied_outputs(const ModelConfig& config) {
  if (config.scale_decoder_outputs == is_tied(config)) return is_tied(config);
  throw UserError("scale_decoder_outputs goes with a tied output in this family's class, and only with one",
                  "set scale_decoder_outputs to the opposite of untie_embeddings_and_output_weights");
}

// First token of the decoder.
void read_start(const Json& file, ModelConfig& config) {
  config.bos_token_id = json_find<int64_t>(file, "decoder_start_token_id", kHfConfigFile);
  if (!config.bos_token_id) config.bos_token_id = json_get_or<int64_t>(file, "pad_token_id", 0, kHfConfigFile);
}

int64_t start(const ModelConfig& config) { return config.bos_token_id.value_or(0); }

HfRows rows() {
  using Config = ModelConfig;
  return HfRows()
      .required("num_layers", &Config::num_layers)
      .field("num_decoder_layers", &Config::decoder_num_layers, nullptr, &Config::num_decoder_layers)
      .required("d_model", &Config::hidden_size)
      .required("num_heads", &Config::num_attention_heads, ungrouped_heads)
      .required("d_kv", &Config::kv_channels, &Config::head_dim)
      .required("d_ff", &Config::ffn_hidden_size, &Config::ffn_size)
      .field("n_positions", &Config::max_position_embeddings, kPublishedLength)
      .join(hf_common_rows())
      .written("bos_token_id", hf_absent())
      .custom("decoder_start_token_id", read_start, start)
      .written("pad_token_id", start)
      .always(&Config::position_embedding_type, PositionEmbedding::kRelative)
      .field("relative_attention_num_buckets", &Config::relative_attention_num_buckets, 32)
      .field("relative_attention_max_distance", &Config::relative_attention_max_distance, 128)
      .always(&Config::normalization, Normalization::kRmsNorm)
      .field("layer_norm_epsilon", &Config::norm_epsilon, 1e-6)
      .always(&Config::add_bias_linear, false)
      .always(&Config::query_pre_attn_scalar, 1)
      .field("scale_decoder_outputs", &Config::scale_decoder_outputs, is_tied, scales_tied_outputs)
      .field("dropout_rate", &Config::hidden_dropout, 0.1)
      .then([](Config& config) { config.attention_dropout = config.hidden_dropout; })
      .words("feed_forward_proj", {{"relu", &Config::relu}, {"gated-gelu", &Config::geglu}},
             "this family's MLP has ReLU, or gates of GELU by a tanh")
      .written("is_encoder_decoder", true);
}

}  // namespace
}  // namespace t5

extern const ModelFamily kT5 = {.name = "t5",
                                .model_type = ModelType::kT5,
                                .hf_model_type = "t5",
                                .hf_class = "T5ForConditionalGeneration",
                                .other_classes = {"T5EncoderModel"},
                                .hf_rows = t5::rows,
                                .units = encoder_decoder_units,
                                .build = build_encoder_decoder};

// For models that Hugging Face's class cannot express; same names.
extern const ModelFamily kMegatronT5 = {.name = "megatron_t5",
                                        .model_type = ModelType::kT5,
                                        .units = encoder_decoder_units,
                                        .build = build_encoder_decoder};

}  // namespace megalith
