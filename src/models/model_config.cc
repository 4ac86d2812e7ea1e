// The architecture's options and their rules.
#include "models/model_config.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "config/option_checks.h"
#include "models/flux_config.h"
#include "models/layer_pattern.h"
#include "models/model_bounds.h"

namespace megalith {

void ModelConfig::visit(OptionVisitor& v) {
  v.group("Model", kOfModel);
  v.choice(
       "model_type", model_type, {kModelTypeWords.begin(), kModelTypeWords.end()},
       "gpt: a decoder, which continues texts. t5: an encoder, and a decoder that attends to what the encoder gives. "
       "bert: an encoder with a head for masked tokens and one for pairs of sentences; it attends to both sides and "
       "has two types of tokens unless told otherwise. biencoder: two such encoders without these heads, of questions "
       "and of texts, whose vectors are compared. diffusion_model: FLUX, which learns to turn noise into the picture "
       "of a text; it reads the options of the group Diffusion and few others. classifier: the layers of a decoder or of "
       "a BERT (is_causal says which) that tell a text's class, or a number. Other options say which of them it is, "
       "as a preset or a Hugging Face folder does.")
      .read_by(kAllModels)
      .alias("kind")
      .acts_in(kWithModel | kPlan);
  v.field("num_layers", num_layers,
          "Number of transformer layers. With model_type t5, those of the encoder; with biencoder, of each encoder.")
      .within(0, kMostLayers)
      .alias("encoder_num_layers")
      .in_toy(InToy::kMade)
      .acts_in(kWithModel | kPlan);
  v.field("decoder_num_layers", decoder_num_layers,
          "Number of the decoder's layers; read only with model_type t5. Default: num_layers.")
      .within(1, kMostLayers)
      .in_toy(InToy::kMade)
      .read_by(kEncoderDecoders)
      .acts_in(kWithModel | kPlan);
  visit_widths(v);
  visit_heads(v);
  v.field("vocab_size", vocab_size, "Number of tokens in the vocabulary. Default: the tokenizer's.")
      .within(1, kMostVocabulary)
      .in_toy(InToy::kMade);
  v.field(
       "make_vocab_size_divisible_by", make_vocab_size_divisible_by,
       "The rows of the embedding are padded to a multiple of this times tensor_model_parallel_size. Padding rows are "
       "zero and take no part in the softmax.")
      .within(1, kMostWidth)
      .changes_weights(false)
      .toy("4");
  v.field("max_position_embeddings", max_position_embeddings, "Longest sequence that the model is made for.")
      .unit("tokens")
      .within(0, kMostPositions)
      .changes_weights(false)
      .in_toy(InToy::kMade);

  v.choice(
       "position_embedding_type", position_embedding_type, {"learned_absolute", "rope", "none", "relative"},
       "How the model encodes positions. relative adds a learned number to each score of self-attention, by the head "
       "and by how far the key lies from the query (T5).")
      .always(kPictureModels, "rope");
  v.field("relative_attention_num_buckets", relative_attention_num_buckets,
          "With position_embedding_type relative: numbers that a head learns, each for a range of distances.")
      .within(4, kMostPositions)
      .read_by(kEncoderDecoders);
  v.field("relative_attention_max_distance", relative_attention_max_distance,
          "With position_embedding_type relative: all keys from this far on share a number.")
      .unit("tokens")
      .within(2, kMostPositions)
      .read_by(kEncoderDecoders);
  v.field("use_rotary_position_embeddings", use_rotary_position_embeddings,
          "Megatron's older option for position_embedding_type rope.");
  v.group("Model", kOfModel.of(kStacks));
  visit_rotary(v);
  v.group("Model", kOfModel);
  visit_mlp(v);
  visit_norm(v);
  visit_biases(v);
  visit_head_norm(v);
  v.field("is_causal", causal,
          "A token attends only to itself and those before it. With false it attends to its whole sequence, as in "
          "BERT; task masked_lm needs that. Default: true, and false with model_type bert and biencoder.")
      .always(kEncoderDecoders, "true")
      .always(kEncoders | kPictureModels, "false");
  v.group("Model", kOfModel.of(kStacks));
  v.field("window_size", window_size,
          "Sliding window: the tokens before itself, and those behind, that a token attends to, such as 4095,0; -1 is "
          "all. Hugging Face's sliding_window W is W-1,0. Default: all.")
      .unit("tokens")
      .within(-1, kMostPositions)
      .in_toy(InToy::kMade);
  v.field("window_attn_skip_freq", window_attn_skip_freq,
          "Which layers have the window of window_size, where others see everything. N: all but every N-th, so that 6 "
          "is five layers with the window and one without. A list has one entry for each layer, 1 for the window and 0 "
          "for none, such as ([1]*5+[0])*4. Default: all.")
      .in_toy(InToy::kMade);
  v.field("rotary_base_local", rotary_base_local,
          "Rotary base of the layers with a window, whose wavelengths are then not stretched. Default: these layers "
          "rotate as the others do.")
      .above(0)
      .alias("rope_local_base_freq");
  v.field("attention_chunk_size", attention_chunk_size,
          "In layers that rotate, a token sees only those of its own chunk: a document is cut into chunks of so many "
          "(Llama 4). 0: no chunks.")
      .unit("tokens")
      .within(0, kMostPositions)
      .toy("3");
  v.field("attn_temperature_scale", attn_temperature_scale,
          "In layers that do not rotate, queries at position p are multiplied by 1 + c log(1 + floor((p + 1) / "
          "attn_temperature_floor)), this being c (Llama 4: 0.1). 0: they are not.")
      .at_least(0);
  v.field("attn_temperature_floor", attn_temperature_floor, "See attn_temperature_scale.")
      .unit("tokens")
      .within(1, kMostPositions)
      .toy("3");
  v.field("no_rope_freq", no_rope_freq,
          "Layers that do not rotate queries and keys, where position_embedding_type is rope. N: every N-th, beginning "
          "with the N-th. A list has one entry for each layer, 1 for no rotation and 0 for one. Default: all rotate.")
      .in_toy(InToy::kMade);
  v.field(
       "attn_logit_softcapping", attn_logit_softcapping,
       "Attention's scores x become c tanh(x / c), so that none is beyond this c (Gemma 2). On a GPU attention is then "
       "the reference, which keeps a matrix of scores. 0: none.")
      .at_least(0);
  v.group("Model", kOfModel);
  v.field("final_logit_softcapping", final_logit_softcapping,
          "The head's logits x become c tanh(x / c), so that none is beyond this c (Gemma 2). 0: none.")
      .at_least(0)
      .read_by(kTextModels - kClassifiers);
  v.field("num_token_types", num_token_types,
          "Types of tokens, such as the two segments of BERT, each with a learned vector that is added to the "
          "embedding of its tokens; only with model_type bert and biencoder, and a classifier on a BERT's layers, where "
          "the default is 2. Default: 0.")
      .within(0, kMostWidth)
      .read_by(kEncoders | kClassifiers);
  v.field("embedding_norm", embedding_norm, "Normalise the embeddings before the first layer (Hugging Face's BERT).")
      .read_by(kStacks);
  v.field("bert_binary_head", bert_binary_head,
          "With model_type bert: a pooler and a classifier on the first token, which say whether two sentences are in "
          "order.")
      .opposite("bert_no_binary_head")
      .read_by({ModelType::kBert});
  v.field("scale_embeddings", scale_embeddings,
          "Multiply embeddings by the square root of hidden_size, rounded to the model's precision (Gemma).")
      .read_by(kStacks);
  v.field("scale_decoder_outputs", scale_decoder_outputs,
          "With model_type t5: divide what the output head reads by the square root of hidden_size (T5 v1.0).")
      .read_by(kEncoderDecoders);
  v.field("untie_embeddings_and_output_weights", untie_embeddings_and_output_weights,
          "Give the output head its own weights instead of the embedding's.")
      .read_by(kTextModels - kBiencoders - kClassifiers);
  visit_random(v);
  v.field("embedding_init_method_std", embedding_init_method_std,
          "Standard deviation of the embedding's initial weights. Default: init_method_std.")
      .at_least(0)
      .changes_weights(false)
      .in_toy(InToy::kDefault);
  visit_experts(v);
  visit_latent(v);
  visit_convolutions(v);
  visit_retrieval(v);
  visit_classifier(v);
  visit_flux(v);
  v.group("Multi-token prediction", kOfModel.of(kStacks - kBiencoders - kClassifiers));
  v.field("mtp_num_layers", mtp_num_layers,
          "Prediction modules behind the last layer; the k-th one predicts the token k places after the next token. "
          "Default and 0: none.")
      .within(0, kMostPredictionModules)
      .in_toy(InToy::kMade)
      .acts_in(kWithModel | kPlan);
  v.field("mtp_loss_scaling_factor", mtp_loss_scaling_factor, "Weight of the mean of the prediction modules' losses.")
      .at_least(0)
      .changes_weights(false);

  v.group("Model", kOfModel);
  v.field(
       "bos_token_id", bos_token_id,
       "Token that begins a text; it goes into an exported config.json. With model_type t5 the decoder starts from it.")
      .within(0, kMostVocabulary)
      .changes_weights(false)
      .in_toy(InToy::kDefault);
  v.field("eos_token_ids", eos_token_ids, "Tokens that end a text; generation stops at any of them.")
      .within(0, kMostVocabulary)
      .changes_weights(false)
      .in_toy(InToy::kDefault);
}

PositionEmbedding ModelConfig::position_embedding() const {
  return use_rotary_position_embeddings ? PositionEmbedding::kRope : position_embedding_type;
}

int64_t ModelConfig::attention_window() const { return window_size.empty() ? 0 : window_size[0] + 1; }

std::vector<int64_t> ModelConfig::layers_with_window() const {
  if (attention_window() == 0) return std::vector<int64_t>(static_cast<size_t>(num_layers), 0);
  return parse_window_attn_skip_freq(window_attn_skip_freq, num_layers);
}

bool ModelConfig::has_windows() const {
  const std::vector<int64_t> layers = layers_with_window();
  return std::find(layers.begin(), layers.end(), 1) != layers.end();
}

std::vector<int64_t> ModelConfig::layers_without_rotation() const {
  const bool rotates = position_embedding() == PositionEmbedding::kRope;
  return parse_no_rope_freq(rotates ? no_rope_freq : "", num_layers);
}

bool ModelConfig::has_experts_at(int64_t layer) const {
  if (!has_experts()) return false;
  const std::vector<int64_t> layers = parse_moe_layer_freq(moe_layer_freq, num_all_layers());
  return layers[static_cast<size_t>(std::min(layer, num_all_layers() - 1))] == 1;
}

int64_t ModelConfig::padded_vocab_size(int64_t tp) const {
  MEGALITH_CHECK(vocab_size.has_value(), "the vocabulary's size is not known yet");
  const int64_t multiple = make_vocab_size_divisible_by * tp;
  return div_up(*vocab_size, multiple) * multiple;
}

namespace {

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
  check_latent(config, errors);
  const auto is_of_heads = [&](std::string_view name) {
    errors.emplace_back(
        fmt::format("{} with multi_latent_attention, whose heads are scaled and rotated otherwise", name),
        fmt::format("leave {} away", name));
  };
  if (config.rotary_seq_len_interpolation_factor != 1) is_of_heads("rotary_seq_len_interpolation_factor");
  if (config.query_pre_attn_scalar) is_of_heads("query_pre_attn_scalar");
  if (config.softmax_type != SoftmaxType::kVanilla) is_of_heads("softmax_type");
  if (config.rotary_base_local) is_of_heads("rotary_base_local");
  if (config.has_linear_bias() || config.add_qkv_bias) {
    errors.emplace_back("multi_latent_attention has no biases, and add_bias_linear or add_qkv_bias is true",
                        "set both to false");
  }
}

void check_window(const ModelConfig& config, std::vector<UserError>& errors) {
  const std::vector<int64_t>& window = config.window_size;
  if (window.empty() || window == std::vector<int64_t>{-1}) return;
  const std::string found = fmt::format("window_size is {}", fmt::join(window, ","));
  if (window.size() != 2) {
    errors.emplace_back(found + ", expected two numbers: the tokens before and those behind",
                        "write 4095,0 for a window of 4096 tokens that ends with the token itself");
  } else if (config.is_causal() && window[1] > 0) {
    errors.emplace_back(found + ", and is_causal lets no token see those behind it",
                        fmt::format("set window_size to {},0", window[0]));
  } else if (!config.is_causal() && window[0] != window[1]) {
    errors.emplace_back(found + " with is_causal false, where a window reaches as far behind as before",
                        fmt::format("set window_size to {0},{0}", window[0]));
  }
}

void check_windowed_layers(const ModelConfig& config, std::vector<UserError>& errors) {
  if (config.attention_window() == 0) {
    const auto is_read_with_window = [&](std::string_view name) {
      errors.emplace_back(fmt::format("{} is given, and window_size gives no layer a window", name),
                          fmt::format("set window_size, or leave {} away", name));
    };
    if (!config.window_attn_skip_freq.empty()) is_read_with_window("window_attn_skip_freq");
    if (config.rotary_base_local) is_read_with_window("rotary_base_local");
    return;
  }
  if (config.num_layers < 1) return;
  try {
    config.layers_with_window();
  } catch (const UserError& error) {
    errors.push_back(error);
  }
}

void check_prediction_modules(const ModelConfig& config, std::vector<UserError>& errors) {
  if (config.num_prediction_modules() == 0) return;
  if (config.norms_sums()) {
    errors.emplace_back("mtp_num_layers with norm_placement post_ln, which has no final norm for them to read",
                        "set mtp_num_layers to 0, or norm_placement to pre");
  }
  if (config.embedding_norm) {
    errors.emplace_back("mtp_num_layers with embedding_norm: prediction modules embed without it",
                        "set mtp_num_layers to 0, or embedding_norm to false");
  }
  if (config.position_embedding() == PositionEmbedding::kLearnedAbsolute) {
    errors.emplace_back("mtp_num_layers needs positions without a table",
                        "set position_embedding_type to rope or none, or mtp_num_layers to 0");
  }
  if (!config.is_causal()) {
    errors.emplace_back("mtp_num_layers with is_causal false: every token would see those that it is to predict",
                        "set mtp_num_layers to 0, or is_causal to true");
  }
}

void check_unrotated_layers(const ModelConfig& config, std::vector<UserError>& errors) {
  if (config.no_rope_freq.empty()) return;
  if (config.position_embedding() != PositionEmbedding::kRope) {
    errors.emplace_back("no_rope_freq is given, and position_embedding_type is not rope", "leave no_rope_freq away");
  } else if (config.multi_latent_attention) {
    errors.emplace_back("no_rope_freq with multi_latent_attention, whose layers all rotate", "leave no_rope_freq away");
  } else if (config.num_layers > 0) {
    try {
      config.layers_without_rotation();
    } catch (const UserError& error) {
      errors.push_back(error);
    }
  }
}

void check_chunks(const ModelConfig& config, std::vector<UserError>& errors) {
  const bool rotates = config.position_embedding() == PositionEmbedding::kRope;
  if (config.attention_chunk_size > 0 && (!rotates || !config.is_causal())) {
    errors.emplace_back("attention_chunk_size is for layers that rotate and are causal",
                        "set attention_chunk_size to 0, or position_embedding_type to rope and is_causal to true");
  }
  if (config.attn_temperature_scale > 0 && config.no_rope_freq.empty()) {
    errors.emplace_back("attn_temperature_scale is for layers that do not rotate, and no_rope_freq leaves none",
                        "set no_rope_freq, or attn_temperature_scale to 0");
  }
  if (config.qk_l2_norm && (config.qk_layernorm || config.multi_latent_attention || !rotates)) {
    errors.emplace_back("qk_l2_norm is for ordinary heads that are rotated and have no qk_layernorm",
                        "set qk_l2_norm to false");
  }
}

void check_experts(const ModelConfig& config, std::vector<UserError>& errors) {
  if (!config.has_experts()) return;
  if (config.num_layers > 0) {
    try {
      parse_moe_layer_freq(config.moe_layer_freq, config.num_all_layers());
    } catch (const UserError& error) {
      errors.push_back(error);
    }
  }
  check_router(config, errors);
  // Layers support it, but routing would not learn.
  if (config.moe_router_topk == 1 && config.moe_router_score_function == RouterScore::kSoftmax &&
      !config.moe_router_pre_softmax && config.moe_router_load_balancing_type != RouterBalancing::kSinkhorn) {
    errors.emplace_back("moe_router_topk 1 with a softmax over only the chosen expert always gives it the weight 1",
                        "set moe_router_pre_softmax to true");
  }
  check_capacity(config, errors);
  if (config.moe_apply_probs_on_input && config.moe_router_topk != 1) {
    errors.emplace_back(fmt::format("moe_apply_probs_on_input with moe_router_topk {}", config.moe_router_topk),
                        "set moe_router_topk to 1, or moe_apply_probs_on_input to false");
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

void check_classifier(const ModelConfig& config, std::vector<UserError>& errors) {
  if (config.model_type != ModelType::kClassifier) return;
  for (UserError& error : check_classifier(static_cast<const ClassifierOptions&>(config))) {
    errors.push_back(std::move(error));
  }
  // A BERT preset says only model_type, which this replaces.
  if (!config.causal) {
    errors.emplace_back("model_type classifier has a decoder's layers or a BERT's, and is_causal does not say which",
                        "set is_causal to true for a decoder's, to false for a BERT's; a Hugging Face folder says it");
  } else if (config.is_causal() && config.token_types() > 0) {
    errors.emplace_back(fmt::format("num_token_types {} with is_causal true: decoders have no types of tokens",
                                    config.token_types()),
                        "set is_causal to false for a BERT's layers, or num_token_types to 0");
  }
}

void check_positions(const ModelConfig& config, std::vector<UserError>& errors) {
  if (config.has_encoder() && config.position_embedding() == PositionEmbedding::kRope) {
    errors.emplace_back(
        "model_type t5 with position_embedding_type rope",
        "set position_embedding_type to relative (Hugging Face's T5), learned_absolute (Megatron-LM's) or none");
  }
  if (config.position_embedding() != PositionEmbedding::kRelative) return;
  if (config.relative_attention_num_buckets % 2 != 0 ||
      config.relative_attention_max_distance <= config.relative_attention_num_buckets / 2) {
    errors.emplace_back(
        fmt::format(
            "relative_attention_num_buckets {} with relative_attention_max_distance {}: the first must be even, "
            "and half of it less than the second",
            config.relative_attention_num_buckets, config.relative_attention_max_distance),
        "T5 has 32 and 128");
  }
  if (config.has_encoder()) return;
  errors.emplace_back(fmt::format("position_embedding_type relative is for model_type t5, which is {}",
                                  kModelTypeWords[static_cast<size_t>(config.model_type)]),
                      "set model_type to t5, or another position_embedding_type");
}

}  // namespace

std::vector<UserError> check_model_config(const ModelConfig& config) {
  std::vector<UserError> errors = check_model_bounds(config);
  if (!errors.empty()) return errors;  // later rules divide and multiply these
  ModelConfig given = config;
  static ModelConfig fresh;
  static const OptionSet untouched(fresh);
  check_readers(OptionSet(given), untouched, config.model_type, errors);
  if (config.is_diffusion()) {
    check_flux_config(config, errors);
    return errors;
  }
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
    // Its heads have their own widths.
  } else if (has_hidden && has_heads && !config.kv_channels && config.hidden_size % config.num_attention_heads != 0) {
    errors.emplace_back(fmt::format("num_attention_heads {} does not divide hidden_size {}", config.num_attention_heads,
                                    config.hidden_size),
                        "change one of them, or set kv_channels to the channels of a head");
  } else if (has_hidden && has_heads && config.position_embedding() == PositionEmbedding::kRope) {
    if (const int64_t rotated = config.rotated_channels(config.head_dim()); rotated % 2 != 0 || rotated < 2) {
      errors.emplace_back(
          fmt::format("rotary embedding rotates pairs of channels, but a head has {} of them{}", config.head_dim(),
                      config.rotary_percent == 1 ? "" : fmt::format(" times rotary_percent {}", config.rotary_percent)),
          "set kv_channels to an even number");
    }
  }
  if (has_heads) check_heads(config, errors);
  if (has_hidden && config.ffn_size() < 1) {
    errors.emplace_back(fmt::format("hidden_size {} is too small for the default ffn_hidden_size", config.hidden_size),
                        "set ffn_hidden_size");
  }
  check_rotary(config, errors);
  for (const int64_t token : config.eos_token_ids) {
    if (config.vocab_size && token >= *config.vocab_size) {
      errors.emplace_back(fmt::format("eos_token_ids has {}, but vocab_size is {}", token, *config.vocab_size),
                          "token ids are below vocab_size");
    }
  }

  check_mlp(config, errors);
  if (config.qk_layernorm && !config.multi_latent_attention &&
      config.qk_layernorm_scope == HeadNormScope::kProjection && config.normalization != Normalization::kRmsNorm) {
    errors.emplace_back("qk_layernorm_scope projection is for normalization RMSNorm, which is LayerNorm",
                        "set normalization to RMSNorm, or qk_layernorm_scope to head");
  }
  if (config.qk_layernorm && config.qk_layernorm_scope == HeadNormScope::kProjection && config.apply_layernorm_1p) {
    errors.emplace_back("apply_layernorm_1p with qk_layernorm_scope projection, whose norms keep whole weights",
                        "set apply_layernorm_1p to false, or qk_layernorm_scope to head");
  }
  check_window(config, errors);
  check_windowed_layers(config, errors);
  check_unrotated_layers(config, errors);
  check_chunks(config, errors);
  check_prediction_modules(config, errors);
  check_latent_attention(config, errors);
  if (config.num_layers > 0) check_convolutions(config, config.num_layers, errors);
  if (config.num_convolutions() > 0 && !config.is_causal()) {
    errors.emplace_back("layer_types conv with is_causal false: a convolution sees only tokens before its own",
                        "set is_causal to true, or leave layer_types away");
  }
  check_experts(config, errors);
  check_positions(config, errors);
  check_classifier(config, errors);
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
  if (config.num_convolutions() > 0) divides(kTp, split.tp, "hidden_size", config.hidden_size, "");
  bool has_dense = !config.has_experts();
  for (int64_t layer = 0; layer < config.num_all_layers() && !has_dense; ++layer) {
    has_dense = !config.has_experts_at(layer);
  }
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
