// The architecture's options, and the rules between them.
#include "models/model_config.h"

#include <algorithm>

#include "models/families.h"

namespace megalith {

void ModelConfig::visit(OptionVisitor& v) {
  v.group("Model");
  v.field("num_layers", num_layers, "Transformer layers.").at_least(0).alias("encoder_num_layers");
  v.field("hidden_size", hidden_size, "Width of the residual stream.").at_least(0);
  v.field("ffn_hidden_size", ffn_hidden_size,
          "Width inside the MLP. Default: 4 * hidden_size; with swiglu, 8/3 * hidden_size rounded down to a multiple "
          "of 64.")
      .at_least(1);
  v.field("num_attention_heads", num_attention_heads, "Query heads.").at_least(0);
  v.field("kv_channels", kv_channels, "Channels of a head. Default: hidden_size / num_attention_heads.").at_least(1);
  v.field("group_query_attention", group_query_attention, "Let groups of query heads share a key and a value head.");
  v.field("num_query_groups", num_query_groups, "Key and value heads; read only with group_query_attention.")
      .at_least(1);
  v.field("vocab_size", vocab_size, "Tokens of the vocabulary. Default: the tokenizer's.").at_least(1);
  v.field(
       "make_vocab_size_divisible_by", make_vocab_size_divisible_by,
       "The rows of the embedding are padded to a multiple of this times tensor_model_parallel_size. Padding rows are "
       "zero and take no part in the softmax.")
      .at_least(1);
  v.field("max_position_embeddings", max_position_embeddings, "The longest sequence the model is made for.")
      .unit("tokens")
      .at_least(0);

  v.choice("position_embedding_type", position_embedding_type, {"learned_absolute", "rope", "none"},
           "How positions enter.");
  v.field("use_rotary_position_embeddings", use_rotary_position_embeddings,
          "Megatron's old spelling of position_embedding_type rope.");
  v.field("rotary_base", rotary_base, "Base of the rotary wavelengths (rope_theta).").above(0);
  v.field("rotary_percent", rotary_percent, "Share of a head's channels that are rotated.").above(0).at_most(1);
  v.field("rotary_interleaved", rotary_interleaved,
          "Rotate channel pairs (2i, 2i+1), as Meta's files do, instead of (i, i+r/2), as Hugging Face's do.");
  v.field("use_rope_scaling", use_rope_scaling, "Stretch long rotary wavelengths by Llama 3.1's rule.");
  v.field("rope_scaling_factor", rope_scaling_factor, "How far they are stretched.").above(0);
  v.field("rope_scaling_low_freq_factor", rope_scaling_low_freq_factor,
          "Wavelengths above the original length over this are stretched by the whole factor.")
      .above(0);
  v.field("rope_scaling_high_freq_factor", rope_scaling_high_freq_factor,
          "Wavelengths below the original length over this are kept.")
      .above(0);
  v.field("rope_scaling_original_max_position_embeddings", rope_scaling_original_max_position_embeddings,
          "The length before stretching.")
      .unit("tokens")
      .at_least(1);

  v.field("swiglu", swiglu, "Gated MLP with SiLU instead of GELU.");
  v.choice("normalization", normalization, {"LayerNorm", "RMSNorm"}, "Normalisation before each block.");
  v.field("norm_epsilon", norm_epsilon, "Added to the variance or mean square.").above(0).alias("layernorm_epsilon");
  v.field("add_bias_linear", add_bias_linear, "Biases in all linear layers.");
  v.field("disable_bias_linear", disable_bias_linear, "No biases in linear layers: add_bias_linear false.");
  v.field("add_qkv_bias", add_qkv_bias, "Biases in the query, key and value projections alone (Qwen).");
  v.field("untie_embeddings_and_output_weights", untie_embeddings_and_output_weights,
          "Give the output head weights of its own.");
  v.field("attention_dropout", attention_dropout, "Probability of dropping an attention weight in training.")
      .at_least(0)
      .below(1);
  v.field("hidden_dropout", hidden_dropout, "Probability of dropping an activation that joins the residual stream.")
      .at_least(0)
      .below(1);
  v.field("init_method_std", init_method_std,
          "Standard deviation of initial weights; the output projections' is divided by sqrt(2 * num_layers).")
      .at_least(0);
  v.field("embedding_init_method_std", embedding_init_method_std,
          "Standard deviation of the embedding's initial weights. Default: init_method_std.")
      .at_least(0);
  v.field("bos_token_id", bos_token_id, "Token that begins a text; goes into an exported config.json.").at_least(0);
  v.field("eos_token_ids", eos_token_ids, "Tokens that end a text; generation stops at any of them.").at_least(0);
}

PositionEmbedding ModelConfig::position_embedding() const {
  return use_rotary_position_embeddings ? PositionEmbedding::kRope : position_embedding_type;
}

int64_t ModelConfig::head_dim() const {
  return kv_channels ? *kv_channels : div_exact(hidden_size, num_attention_heads);
}

int64_t ModelConfig::num_kv_heads() const { return group_query_attention ? num_query_groups : num_attention_heads; }

int64_t ModelConfig::ffn_size() const {
  if (ffn_hidden_size) return *ffn_hidden_size;
  // Megatron's: three matrices of 8h/3 hold what two of 4h do.
  return swiglu ? 8 * hidden_size / 3 / 64 * 64 : 4 * hidden_size;
}

int64_t ModelConfig::padded_vocab_size(int64_t tp) const {
  MEGALITH_CHECK(vocab_size.has_value(), "the vocabulary's size is not known yet");
  const int64_t multiple = make_vocab_size_divisible_by * tp;
  return div_up(*vocab_size, multiple) * multiple;
}

std::vector<UserError> check_model_config(const ModelConfig& config) {
  std::vector<UserError> errors;
  const auto require = [&](std::string_view name, int64_t value) {
    if (value > 0) return true;
    errors.emplace_back(
        fmt::format("{} is {}: the model's shape is incomplete", name, value),
        fmt::format("set {}, or take a preset from configs/models/ or a Hugging Face folder with load_hf", name));
    return false;
  };
  require("num_layers", config.num_layers);
  const bool has_hidden = require("hidden_size", config.hidden_size);
  const bool has_heads = require("num_attention_heads", config.num_attention_heads);
  require("max_position_embeddings", config.max_position_embeddings);

  if (has_hidden && has_heads && !config.kv_channels && config.hidden_size % config.num_attention_heads != 0) {
    errors.emplace_back(fmt::format("num_attention_heads {} does not divide hidden_size {}", config.num_attention_heads,
                                    config.hidden_size),
                        "change one of them, or set kv_channels to the channels of a head");
  } else if (has_hidden && has_heads && config.position_embedding() == PositionEmbedding::kRope) {
    const double rotated = static_cast<double>(config.head_dim()) * config.rotary_percent;
    if (static_cast<int64_t>(rotated) % 2 != 0 || rotated < 2) {
      errors.emplace_back(
          fmt::format("rotary embedding rotates pairs of channels, but a head has {} of them{}", config.head_dim(),
                      config.rotary_percent == 1 ? "" : fmt::format(" times rotary_percent {}", config.rotary_percent)),
          "set kv_channels to an even number");
    }
  }
  if (has_heads && config.num_attention_heads % config.num_kv_heads() != 0) {
    errors.emplace_back(fmt::format("num_query_groups {} does not divide num_attention_heads {}",
                                    config.num_query_groups, config.num_attention_heads),
                        fmt::format("set num_query_groups to a divisor of {}", config.num_attention_heads));
  }
  if (has_hidden && config.ffn_size() < 1) {
    errors.emplace_back(fmt::format("hidden_size {} is too small for the default ffn_hidden_size", config.hidden_size),
                        "set ffn_hidden_size");
  }
  if (config.use_rope_scaling && config.rope_scaling_high_freq_factor <= config.rope_scaling_low_freq_factor) {
    errors.emplace_back(fmt::format("rope_scaling_high_freq_factor {} is not above rope_scaling_low_freq_factor {}",
                                    config.rope_scaling_high_freq_factor, config.rope_scaling_low_freq_factor),
                        "Llama 3.1 uses 4 and 1");
  }
  for (const int64_t token : config.eos_token_ids) {
    if (config.vocab_size && token >= *config.vocab_size) {
      errors.emplace_back(fmt::format("eos_token_ids has {}, but vocab_size is {}", token, *config.vocab_size),
                          "token ids are below vocab_size");
    }
  }

  // What no family here provides.
  const auto unsupported = [&](bool is_asked_for, std::string_view what, std::string_view remedy) {
    if (is_asked_for)
      errors.emplace_back(fmt::format("{}: no model family here provides this", what), std::string(remedy));
  };
  unsupported(config.normalization != Normalization::kRmsNorm, "normalization LayerNorm",
              "set normalization to RMSNorm, as Llama and Qwen do");
  unsupported(config.position_embedding() != PositionEmbedding::kRope,
              config.position_embedding() == PositionEmbedding::kNone ? "position_embedding_type none"
                                                                      : "position_embedding_type learned_absolute",
              "set position_embedding_type to rope, as Llama and Qwen do");
  unsupported(!config.swiglu, "an MLP with GELU", "set swiglu to true, as Llama and Qwen have it");
  unsupported(config.has_linear_bias(), "add_bias_linear true",
              "set add_bias_linear to false (--disable_bias_linear); add_qkv_bias gives Qwen's biases");
  return errors;
}

std::vector<UserError> check_model_layout(const ModelConfig& config, int64_t tp) {
  std::vector<UserError> errors;
  const auto divides = [&](std::string_view name, int64_t value, std::string_view remedy) {
    if (value % tp == 0) return;
    errors.emplace_back(fmt::format("tensor_model_parallel_size {} does not divide {} {}", tp, name, value),
                        fmt::format("set tensor_model_parallel_size to a divisor of {}{}", value, remedy));
  };
  divides("num_attention_heads", config.num_attention_heads, "");
  if (config.num_kv_heads() != config.num_attention_heads) divides("num_query_groups", config.num_kv_heads(), "");
  divides("ffn_hidden_size", config.ffn_size(), ", or change ffn_hidden_size");
  return errors;
}

}  // namespace megalith
