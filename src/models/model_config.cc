// The architecture's options, and the rules between them.
#include "models/model_config.h"

#include <algorithm>

#include "models/families.h"
#include "models/model_bounds.h"

namespace megalith {

void ModelConfig::visit(OptionVisitor& v) {
  v.group("Model", kOfModel);
  v.field("num_layers", num_layers, "Transformer layers.")
      .at_least(0)
      .at_most(kMostLayers)
      .alias("encoder_num_layers")
      .in_toy(InToy::kMade);
  v.field("hidden_size", hidden_size, "Width of the residual stream.")
      .at_least(0)
      .at_most(kMostWidth)
      .in_toy(InToy::kMade);
  v.field("ffn_hidden_size", ffn_hidden_size,
          "Width inside the MLP. Default: 4 * hidden_size; with swiglu, 8/3 * hidden_size rounded down to a multiple "
          "of 64.")
      .at_least(1)
      .at_most(kMostFfnWidth)
      .in_toy(InToy::kMade);
  v.field("num_attention_heads", num_attention_heads, "Query heads.")
      .at_least(0)
      .at_most(kMostHeads)
      .in_toy(InToy::kMade);
  v.field("kv_channels", kv_channels, "Channels of a head. Default: hidden_size / num_attention_heads.")
      .at_least(1)
      .at_most(kMostWidth)
      .in_toy(InToy::kMade);
  v.field("group_query_attention", group_query_attention, "Let groups of query heads share a key and a value head.");
  v.field("num_query_groups", num_query_groups, "Key and value heads; read only with group_query_attention.")
      .at_least(1)
      .at_most(kMostHeads)
      .in_toy(InToy::kMade);
  v.field("vocab_size", vocab_size, "Tokens of the vocabulary. Default: the tokenizer's.")
      .at_least(1)
      .at_most(kMostVocabulary)
      .in_toy(InToy::kMade);
  v.field(
       "make_vocab_size_divisible_by", make_vocab_size_divisible_by,
       "The rows of the embedding are padded to a multiple of this times tensor_model_parallel_size. Padding rows are "
       "zero and take no part in the softmax.")
      .at_least(1)
      .at_most(kMostWidth)
      .changes_weights(false)
      .in_toy(InToy::kMade);
  v.field("max_position_embeddings", max_position_embeddings, "The longest sequence the model is made for.")
      .unit("tokens")
      .at_least(0)
      .at_most(kMostPositions)
      .changes_weights(false)
      .in_toy(InToy::kMade);

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
      .at_least(1)
      .at_most(kMostPositions);

  v.field("swiglu", swiglu, "Gated MLP with SiLU instead of GELU.");
  v.field("squared_relu", squared_relu, "Squared ReLU instead of GELU.");
  v.field("openai_gelu", openai_gelu, "GELU by a tanh, whatever bias_gelu_fusion says.");
  v.field(
      "bias_gelu_fusion", bias_gelu_fusion,
      "Operators are always fused; but as in Megatron-LM, GELU is computed by a tanh with it (GPT-2's form), and by "
      "the error function without it or without biases.");
  v.choice("normalization", normalization, {"LayerNorm", "RMSNorm"}, "Normalisation before each block.");
  v.field("norm_epsilon", norm_epsilon, "Added to the variance or mean square.").above(0).alias("layernorm_epsilon");
  v.field("apply_layernorm_1p", apply_layernorm_1p, "LayerNorm keeps its weight less 1.");
  v.field("add_bias_linear", add_bias_linear, "Biases in all linear layers.");
  v.field("disable_bias_linear", disable_bias_linear, "No biases in linear layers: add_bias_linear false.");
  v.field("add_qkv_bias", add_qkv_bias, "Biases in the query, key and value projections alone (Qwen).");
  v.field("qk_layernorm", qk_layernorm,
          "Normalise each query and key head before it is rotated (Qwen3). With multi_latent_attention: the latent "
          "vectors, before they are projected up.");
  v.field("is_causal", is_causal,
          "A token attends only to itself and those before it. false: to all of its sequence, as in BERT; for task "
          "masked_lm.");
  v.field("untie_embeddings_and_output_weights", untie_embeddings_and_output_weights,
          "Give the output head weights of its own.");
  v.field("attention_dropout", attention_dropout, "Probability of dropping an attention weight in training.")
      .at_least(0)
      .below(1)
      .changes_weights(false);
  v.field("hidden_dropout", hidden_dropout, "Probability of dropping an activation that joins the residual stream.")
      .at_least(0)
      .below(1)
      .changes_weights(false);
  v.field("init_method_std", init_method_std,
          "Standard deviation of initial weights; the output projections' is divided by sqrt(2 * num_layers).")
      .at_least(0)
      .changes_weights(false)
      .in_toy(InToy::kMade);
  v.field("embedding_init_method_std", embedding_init_method_std,
          "Standard deviation of the embedding's initial weights. Default: init_method_std.")
      .at_least(0)
      .changes_weights(false)
      .in_toy(InToy::kDefault);
  visit_experts(v);
  visit_latent(v);
  v.group("Multi-token prediction", kOfModel);
  v.field("mtp_num_layers", mtp_num_layers,
          "Modules behind the last layer, the k-th of which predicts the token k further on. Default and 0: none.")
      .at_least(0)
      .at_most(kMostPredictionModules)
      .in_toy(InToy::kMade);
  v.field("mtp_loss_scaling_factor", mtp_loss_scaling_factor, "Weight of the mean of their losses.")
      .at_least(0)
      .changes_weights(false);

  v.group("Model", kOfModel);
  v.field("bos_token_id", bos_token_id, "Token that begins a text; goes into an exported config.json.")
      .at_least(0)
      .at_most(kMostVocabulary)
      .changes_weights(false)
      .in_toy(InToy::kDefault);
  v.field("eos_token_ids", eos_token_ids, "Tokens that end a text; generation stops at any of them.")
      .at_least(0)
      .at_most(kMostVocabulary)
      .changes_weights(false)
      .in_toy(InToy::kDefault);
}

PositionEmbedding ModelConfig::position_embedding() const {
  return use_rotary_position_embeddings ? PositionEmbedding::kRope : position_embedding_type;
}

int64_t ModelConfig::head_dim() const {
  if (kv_channels) return *kv_channels;
  // The heads of latent attention need not divide the stream.
  return multi_latent_attention ? query_head_dim() : div_exact(hidden_size, num_attention_heads);
}

int64_t ModelConfig::num_kv_heads() const { return group_query_attention ? num_query_groups : num_attention_heads; }

int64_t ModelConfig::ffn_size() const {
  if (ffn_hidden_size) return *ffn_hidden_size;
  // Megatron's: three matrices of 8h/3 hold what two of 4h do.
  return swiglu ? 8 * hidden_size / 3 / 64 * 64 : 4 * hidden_size;
}

ops::ActivationKind ModelConfig::activation() const {
  if (swiglu) return ops::ActivationKind::kSilu;
  if (squared_relu) return ops::ActivationKind::kSquaredRelu;
  const bool is_tanh = openai_gelu || (bias_gelu_fusion && has_linear_bias());
  return is_tanh ? ops::ActivationKind::kGeluTanh : ops::ActivationKind::kGelu;
}

int64_t ModelConfig::shared_expert_size() const {
  if (!has_experts()) return 0;
  if (moe_shared_expert_intermediate_size) return *moe_shared_expert_intermediate_size;
  return num_shared_experts.value_or(0) * expert_ffn_size();
}

bool ModelConfig::has_experts_at(int64_t layer) const {
  if (!has_experts()) return false;
  const std::vector<int64_t> layers = parse_moe_layer_freq(moe_layer_freq, num_layers);
  return layers[static_cast<size_t>(std::min(layer, num_layers - 1))] == 1;
}

int64_t ModelConfig::padded_vocab_size(int64_t tp) const {
  MEGALITH_CHECK(vocab_size.has_value(), "the vocabulary's size is not known yet");
  const int64_t multiple = make_vocab_size_divisible_by * tp;
  return div_up(*vocab_size, multiple) * multiple;
}

namespace {

void check_activation(const ModelConfig& config, std::vector<UserError>& errors) {
  const int chosen = (config.swiglu ? 1 : 0) + (config.squared_relu ? 1 : 0) + (config.openai_gelu ? 1 : 0);
  if (chosen > 1) {
    errors.emplace_back("more than one of swiglu, squared_relu and openai_gelu is on", "keep one of them");
  }
  if (config.apply_layernorm_1p && config.normalization != Normalization::kLayerNorm) {
    errors.emplace_back("apply_layernorm_1p is for normalization LayerNorm, which is RMSNorm",
                        "set apply_layernorm_1p to false");
  }
}

void check_latent_attention(const ModelConfig& config, std::vector<UserError>& errors) {
  if (!config.multi_latent_attention) return;
  if (config.group_query_attention) {
    errors.emplace_back("multi_latent_attention and group_query_attention exclude each other",
                        "set group_query_attention to false");
  }
  if (config.position_embedding() != PositionEmbedding::kRope) {
    errors.emplace_back("multi_latent_attention rotates a part of each head, but position_embedding_type is not rope",
                        "set position_embedding_type to rope");
  }
  if (config.qk_pos_emb_head_dim % 2 != 0) {
    errors.emplace_back(
        fmt::format("qk_pos_emb_head_dim {} is odd: pairs of channels are rotated", config.qk_pos_emb_head_dim),
        "set it to an even number");
  }
  if (config.has_linear_bias() || config.add_qkv_bias) {
    errors.emplace_back("multi_latent_attention has no biases, and add_bias_linear or add_qkv_bias is true",
                        "set both to false");
  }
}

void check_router(const ModelConfig& config, int64_t num_experts, std::vector<UserError>& errors) {
  const int64_t topk = config.moe_router_topk;
  if (topk > num_experts) {
    errors.emplace_back(fmt::format("moe_router_topk {} is more than num_experts {}", topk, num_experts),
                        fmt::format("set moe_router_topk to {} or less", num_experts));
  }
  const bool is_sinkhorn = config.moe_router_load_balancing_type == RouterBalancing::kSinkhorn;
  if (topk == 1 && config.moe_router_score_function == RouterScore::kSoftmax && !config.moe_router_pre_softmax &&
      !is_sinkhorn) {
    errors.emplace_back("moe_router_topk 1 with a softmax over the chosen expert alone gives it the weight 1 always",
                        "set moe_router_pre_softmax to true");
  }
  if (config.moe_router_enable_expert_bias && config.moe_router_score_function != RouterScore::kSigmoid) {
    errors.emplace_back("moe_router_enable_expert_bias is for sigmoid scores, and moe_router_score_function is softmax",
                        "set moe_router_score_function to sigmoid, or leave the bias away");
  }
  if (is_sinkhorn && (config.moe_router_num_groups || config.moe_router_enable_expert_bias)) {
    errors.emplace_back("moe_router_load_balancing_type sinkhorn does not go with groups of experts or an expert bias",
                        "leave them away");
  }
  if (is_sinkhorn && config.has_capacity()) {
    errors.emplace_back("moe_expert_capacity_factor does not go with moe_router_load_balancing_type sinkhorn",
                        "leave one of them away");
  }
  if (config.moe_router_num_groups.has_value() != config.moe_router_group_topk.has_value()) {
    errors.emplace_back("moe_router_num_groups and moe_router_group_topk are given together or not at all",
                        "give both, or neither");
  } else if (config.moe_router_num_groups) {
    const int64_t groups = *config.moe_router_num_groups, open = *config.moe_router_group_topk;
    if (num_experts % groups != 0) {
      errors.emplace_back(fmt::format("moe_router_num_groups {} does not divide num_experts {}", groups, num_experts),
                          "change one of them");
    } else if (open > groups) {
      errors.emplace_back(fmt::format("moe_router_group_topk {} is more than moe_router_num_groups {}", open, groups),
                          fmt::format("set it to {} or less", groups));
    } else if (topk > open * (num_experts / groups)) {
      errors.emplace_back(fmt::format("moe_router_topk {} is more than the {} experts of {} groups", topk,
                                      open * (num_experts / groups), open),
                          "lower moe_router_topk, or raise moe_router_group_topk");
    } else if (config.moe_router_group_score == GroupScore::kTopSum && topk < open) {
      errors.emplace_back(fmt::format("a group is judged by its {} / {} best scores, which is none", topk, open),
                          "lower moe_router_group_topk, or set moe_router_group_score to max");
    }
  }
}

void check_experts(const ModelConfig& config, std::vector<UserError>& errors) {
  if (!config.has_experts()) return;
  if (config.num_layers > 0) {
    try {
      parse_moe_layer_freq(config.moe_layer_freq, config.num_layers);
    } catch (const UserError& error) {
      errors.push_back(error);
    }
  }
  check_router(config, *config.num_experts, errors);
  if (config.has_linear_bias()) {
    errors.emplace_back("experts have no biases, and add_bias_linear is true",
                        "set add_bias_linear to false (--disable_bias_linear)");
  }
  if (config.moe_pad_expert_input_to_capacity && !config.has_capacity()) {
    errors.emplace_back("moe_pad_expert_input_to_capacity without a capacity", "set moe_expert_capacity_factor");
  }
  if (config.moe_input_jitter_eps.value_or(0) >= 1) {
    errors.emplace_back(fmt::format("moe_input_jitter_eps is {}, expected below 1", *config.moe_input_jitter_eps),
                        "Switch Transformers used 0.01");
  }
  if (config.moe_shared_expert_intermediate_size && config.num_shared_experts &&
      *config.moe_shared_expert_intermediate_size != *config.num_shared_experts * config.expert_ffn_size()) {
    errors.emplace_back(
        fmt::format("moe_shared_expert_intermediate_size {} is not num_shared_experts {} times {}",
                    *config.moe_shared_expert_intermediate_size, *config.num_shared_experts, config.expert_ffn_size()),
        "give one of them");
  }
  if (config.moe_shared_expert_overlap && config.shared_expert_size() > 0 &&
      config.dispatcher() == DispatcherKind::kAllGather) {
    errors.emplace_back("moe_shared_expert_overlap is for moe_token_dispatcher_type alltoall, which is allgather",
                        "set moe_token_dispatcher_type to alltoall, or leave the overlap away");
  }
}

}  // namespace

std::vector<UserError> check_model_config(const ModelConfig& config) {
  std::vector<UserError> errors = check_model_bounds(config);
  if (!errors.empty()) return errors;  // the other rules divide and multiply what they find
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

  if (config.multi_latent_attention) {
    // Its heads have widths of their own.
  } else if (has_hidden && has_heads && !config.kv_channels && config.hidden_size % config.num_attention_heads != 0) {
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

  check_activation(config, errors);
  check_latent_attention(config, errors);
  check_experts(config, errors);
  if (config.num_prediction_modules() > 0 && config.position_embedding() == PositionEmbedding::kLearnedAbsolute) {
    errors.emplace_back("mtp_num_layers needs positions without a table",
                        "set position_embedding_type to rope or none, or mtp_num_layers to 0");
  }
  if (config.num_prediction_modules() > 0 && !config.is_causal) {
    errors.emplace_back("mtp_num_layers with is_causal false: every token would see those that it is to predict",
                        "set mtp_num_layers to 0, or is_causal to true");
  }
  return errors;
}

std::vector<UserError> check_model_layout(const ModelConfig& config, const ModelSplit& split) {
  std::vector<UserError> errors;
  const auto divides = [&](std::string_view option, int64_t size, std::string_view name, int64_t value,
                           std::string_view remedy) {
    if (value % size == 0) return;
    errors.emplace_back(fmt::format("{} {} does not divide {} {}", option, size, name, value),
                        fmt::format("set {} to a divisor of {}{}", option, value, remedy));
  };
  constexpr std::string_view kTp = "tensor_model_parallel_size";
  divides(kTp, split.tp, "num_attention_heads", config.num_attention_heads, "");
  if (config.num_kv_heads() != config.num_attention_heads) {
    divides(kTp, split.tp, "num_query_groups", config.num_kv_heads(), "");
  }
  bool has_dense = !config.has_experts();
  for (int64_t layer = 0; layer < config.num_layers && !has_dense; ++layer) has_dense = !config.has_experts_at(layer);
  if (has_dense) divides(kTp, split.tp, "ffn_hidden_size", config.ffn_size(), ", or change ffn_hidden_size");
  if (!config.has_experts()) {
    if (split.ep > 1) {
      errors.emplace_back(fmt::format("expert_model_parallel_size is {}, and the model has no experts", split.ep),
                          "set num_experts, or expert_model_parallel_size to 1");
    }
    return errors;
  }
  divides("expert_model_parallel_size", split.ep, "num_experts", *config.num_experts, "");
  divides("expert_tensor_parallel_size", split.etp, "moe_ffn_hidden_size", config.expert_ffn_size(),
          " (it is tensor_model_parallel_size unless given)");
  if (config.shared_expert_size() > 0) {
    divides(kTp, split.tp, "moe_shared_expert_intermediate_size", config.shared_expert_size(), "");
  }
  return errors;
}

}  // namespace megalith
