#include "gguf/architectures.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "config/resolve.h"
#include "core/error.h"

namespace megalith {

namespace gguf_rows {
namespace {

using enum GgufChange;
using enum GgufKind;

constexpr GgufTensorRow kDecoder[] = {
    {"model.embed_tokens", "token_embd"},
    {"model.norm", "output_norm"},
    {"lm_head", "output"},
    {"model.layers.#.input_layernorm", "blk.#.attn_norm"},
    {"model.layers.#.self_attn.q_proj", "blk.#.attn_q"},
    {"model.layers.#.self_attn.k_proj", "blk.#.attn_k"},
    {"model.layers.#.self_attn.v_proj", "blk.#.attn_v"},
    {"model.layers.#.self_attn.o_proj", "blk.#.attn_output"},
    {"model.layers.#.self_attn.q_norm", "blk.#.attn_q_norm"},
    {"model.layers.#.self_attn.k_norm", "blk.#.attn_k_norm"},
    {"model.layers.#.post_attention_layernorm", "blk.#.ffn_norm"},
};
constexpr GgufTensorRow kMlp[] = {
    {"model.layers.#.mlp.gate_proj", "blk.#.ffn_gate"},
    {"model.layers.#.mlp.up_proj", "blk.#.ffn_up"},
    {"model.layers.#.mlp.down_proj", "blk.#.ffn_down"},
};
constexpr GgufTensorRow kAdjacentPairs[] = {
    {"model.layers.#.self_attn.q_proj", "blk.#.attn_q", kQueryRows},
    {"model.layers.#.self_attn.k_proj", "blk.#.attn_k", kKeyRows},
};
constexpr GgufTensorRow kMixtralExperts[] = {
    {"model.layers.#.block_sparse_moe.gate", "blk.#.ffn_gate_inp"},
    {"model.layers.#.block_sparse_moe.experts.#.w1", "blk.#.ffn_gate_exps", kStack},
    {"model.layers.#.block_sparse_moe.experts.#.w2", "blk.#.ffn_down_exps", kStack},
    {"model.layers.#.block_sparse_moe.experts.#.w3", "blk.#.ffn_up_exps", kStack},
};
constexpr GgufTensorRow kExperts[] = {
    {"model.layers.#.mlp.gate", "blk.#.ffn_gate_inp"},
    {"model.layers.#.mlp.experts.#.down_proj", "blk.#.ffn_down_exps", kStack},
    {"model.layers.#.mlp.experts.#.gate_proj", "blk.#.ffn_gate_exps", kStack},
    {"model.layers.#.mlp.experts.#.up_proj", "blk.#.ffn_up_exps", kStack},
};
constexpr GgufTensorRow kSharedExperts[] = {
    {"model.layers.#.mlp.gate.e_score_correction_bias", "blk.#.exp_probs_b.bias"},
    {"model.layers.#.mlp.shared_experts.gate_proj", "blk.#.ffn_gate_shexp"},
    {"model.layers.#.mlp.shared_experts.up_proj", "blk.#.ffn_up_shexp"},
    {"model.layers.#.mlp.shared_experts.down_proj", "blk.#.ffn_down_shexp"},
};
constexpr GgufTensorRow kNormAfterAttention[] = {
    {"model.layers.#.post_attention_layernorm", "blk.#.post_attention_norm"},
    {"model.layers.#.post_feedforward_layernorm", "blk.#.post_ffw_norm"},
};
constexpr GgufTensorRow kLatentAttention[] = {
    {"model.layers.#.self_attn.q_a_proj", "blk.#.attn_q_a"},
    {"model.layers.#.self_attn.q_a_layernorm", "blk.#.attn_q_a_norm"},
    {"model.layers.#.self_attn.q_b_proj", "blk.#.attn_q_b"},
    {"model.layers.#.self_attn.kv_a_proj_with_mqa", "blk.#.attn_kv_a_mqa"},
    {"model.layers.#.self_attn.kv_a_layernorm", "blk.#.attn_kv_a_norm"},
    {"model.layers.#.self_attn.kv_b_proj", "blk.#.attn_k_b", kKeyUp},
    {"model.layers.#.self_attn.kv_b_proj", "blk.#.attn_v_b", kValueUp},
};
constexpr GgufTensorRow kGemmaNorms[] = {
    {"model.norm", "output_norm", kPlusOne},
    {"model.layers.#.input_layernorm", "blk.#.attn_norm", kPlusOne},
    {"model.layers.#.self_attn.q_norm", "blk.#.attn_q_norm", kPlusOne},
    {"model.layers.#.self_attn.k_norm", "blk.#.attn_k_norm", kPlusOne},
    {"model.layers.#.post_attention_layernorm", "blk.#.post_attention_norm", kPlusOne},
    {"model.layers.#.pre_feedforward_layernorm", "blk.#.ffn_norm", kPlusOne},
    {"model.layers.#.post_feedforward_layernorm", "blk.#.post_ffw_norm", kPlusOne},
};
constexpr GgufTensorRow kGptOssTensors[] = {
    {"model.layers.#.self_attn.sinks", "blk.#.attn_sinks.weight"},
    {"model.layers.#.mlp.router", "blk.#.ffn_gate_inp"},
    {"model.layers.#.mlp.experts.gate_up_proj", "blk.#.ffn_gate_exps.weight", kEven},
    {"model.layers.#.mlp.experts.gate_up_proj", "blk.#.ffn_up_exps.weight", kOdd},
    {"model.layers.#.mlp.experts.gate_up_proj_bias", "blk.#.ffn_gate_exps.bias", kEven},
    {"model.layers.#.mlp.experts.gate_up_proj_bias", "blk.#.ffn_up_exps.bias", kOdd},
    {"model.layers.#.mlp.experts.down_proj", "blk.#.ffn_down_exps.weight", kTranspose},
    {"model.layers.#.mlp.experts.down_proj_bias", "blk.#.ffn_down_exps.bias"},
};
constexpr GgufTensorRow kLlama4Tensors[] = {
    {"model.layers.#.feed_forward.gate_proj", "blk.#.ffn_gate"},
    {"model.layers.#.feed_forward.up_proj", "blk.#.ffn_up"},
    {"model.layers.#.feed_forward.down_proj", "blk.#.ffn_down"},
    {"model.layers.#.feed_forward.router", "blk.#.ffn_gate_inp"},
    {"model.layers.#.feed_forward.experts.gate_up_proj", "blk.#.ffn_gate_exps.weight", kFirstHalf},
    {"model.layers.#.feed_forward.experts.gate_up_proj", "blk.#.ffn_up_exps.weight", kSecondHalf},
    {"model.layers.#.feed_forward.experts.down_proj", "blk.#.ffn_down_exps.weight", kTranspose},
    {"model.layers.#.feed_forward.shared_expert.gate_proj", "blk.#.ffn_gate_shexp"},
    {"model.layers.#.feed_forward.shared_expert.up_proj", "blk.#.ffn_up_shexp"},
    {"model.layers.#.feed_forward.shared_expert.down_proj", "blk.#.ffn_down_shexp"},
};
constexpr GgufTensorRow kGpt2Tensors[] = {
    {"transformer.wte", "token_embd"},
    {"transformer.wpe", "position_embd"},
    {"transformer.ln_f", "output_norm"},
    {"transformer.h.#.ln_1", "blk.#.attn_norm"},
    {"transformer.h.#.ln_2", "blk.#.ffn_norm"},
    {"transformer.h.#.attn.c_attn", "blk.#.attn_qkv", kTranspose},
    {"transformer.h.#.attn.c_proj", "blk.#.attn_output", kTranspose},
    {"transformer.h.#.mlp.c_fc", "blk.#.ffn_up", kTranspose},
    {"transformer.h.#.mlp.c_proj", "blk.#.ffn_down", kTranspose},
};

Json member(const Json& config, std::string_view key) {
  const auto found = config.find(key);
  return found == config.end() ? Json(nullptr) : *found;
}

int64_t whole(const Json& config, std::string_view key) { return try_whole_number(member(config, key)).value_or(0); }

Json head_width(const Json& config) {
  const int64_t given = whole(config, "head_dim");
  return given > 0 ? given : whole(config, "hidden_size") / std::max<int64_t>(whole(config, "num_attention_heads"), 1);
}

// Llama 3's is a tensor instead.
Json scaling(const Json& config, std::string_view key) {
  const Json rope = member(config, "rope_scaling");
  if (!rope.is_object()) return nullptr;
  const Json type = member(rope, "rope_type");
  return type == "linear" || type == "yarn" ? member(rope, key) : Json(nullptr);
}

Json gating_function(const Json& config) {
  const Json name = member(config, "scoring_func");
  return name == "softmax" ? Json(1) : name == "sigmoid" ? Json(2) : Json(nullptr);
}

constexpr GgufKeyRow kModelKeys[] = {
    {"block_count", kUint, "num_hidden_layers"},
    {"context_length", kUint, "max_position_embeddings"},
    {"embedding_length", kUint, "hidden_size"},
    {"feed_forward_length", kUint, "intermediate_size"},
    {"attention.head_count", kUint, "num_attention_heads"},
    {"attention.head_count_kv", kUint, "num_key_value_heads"},
    {"rope.scaling.type", kText, "", [](const Json& c) { return scaling(c, "rope_type"); }},
    {"rope.scaling.factor", kFloat, "", [](const Json& c) { return scaling(c, "factor"); }},
    {"rope.scaling.original_context_length", kUint, "",
     [](const Json& c) { return scaling(c, "original_max_position_embeddings"); }},
    {"rope.scaling.yarn_attn_factor", kFloat, "", [](const Json& c) { return scaling(c, "attention_factor"); }},
    {"rope.scaling.yarn_beta_fast", kFloat, "", [](const Json& c) { return scaling(c, "beta_fast"); }},
    {"rope.scaling.yarn_beta_slow", kFloat, "", [](const Json& c) { return scaling(c, "beta_slow"); }},
    {"rope.freq_base", kFloat, "rope_theta"},
    {"rope.freq_base_swa", kFloat, "rope_local_base_freq"},
    {"attention.layer_norm_rms_epsilon", kFloat, "rms_norm_eps"},
    {"expert_count", kUint, "num_local_experts"},
    {"expert_count", kUint, "num_experts"},
    {"expert_count", kUint, "n_routed_experts"},
    {"expert_used_count", kUint, "num_experts_per_tok"},
    {"expert_group_count", kUint, "n_group"},
    {"expert_group_used_count", kUint, "topk_group"},
    {"expert_gating_func", kUint, "", gating_function},
};
constexpr GgufKeyRow kHeadKeys[] = {
    {"attention.key_length", kUint, "head_dim"},
    {"attention.value_length", kUint, "head_dim"},
};
// For classes that compute it where config.json leaves it out.
constexpr GgufKeyRow kGivenHeadKeys[] = {
    {"attention.key_length", kUint, "head_dim", nullptr, true},
    {"attention.value_length", kUint, "head_dim", nullptr, true},
};
constexpr GgufKeyRow kLlamaKeys[] = {
    {"vocab_size", kUint, "vocab_size"},
    {"rope.dimension_count", kUint, "", head_width},
};
constexpr GgufKeyRow kLlama4Keys[] = {
    {"feed_forward_length", kUint, "intermediate_size_mlp"},
    {"vocab_size", kUint, "vocab_size"},
    {"rope.dimension_count", kUint, "", head_width},
    // Layers with experts are every n-th, from the n-th.
    {"interleave_moe_layer_step", kUint, "",
     [](const Json& c) {
       const Json layers = member(c, "moe_layers");
       return layers.empty() ? Json(0) : Json(try_whole_number(layers[0]).value_or(0) + 1);
     }},
    {"expert_feed_forward_length", kUint, "intermediate_size"},
};
constexpr GgufKeyRow kExpertKeys[] = {{"expert_feed_forward_length", kUint, "moe_intermediate_size"}};
constexpr GgufKeyRow kGemma2Keys[] = {
    {"context_length", kUint, "max_position_embeddings"},
    {"embedding_length", kUint, "hidden_size"},
    {"block_count", kUint, "num_hidden_layers"},
    {"feed_forward_length", kUint, "intermediate_size"},
    {"attention.head_count", kUint, "num_attention_heads"},
    {"attention.head_count_kv", kUint, "num_key_value_heads"},
    {"attention.layer_norm_rms_epsilon", kFloat, "rms_norm_eps"},
    {"attention.key_length", kUint, "head_dim"},
    {"attention.value_length", kUint, "head_dim"},
};
constexpr GgufKeyRow kGemma2MoreKeys[] = {
    {"attn_logit_softcapping", kFloat, "attn_logit_softcapping"},
    {"final_logit_softcapping", kFloat, "final_logit_softcapping"},
    {"attention.sliding_window", kUint, "sliding_window"},
    // llama.cpp's default is 10000, and its converter trusts that.
    {"rope.freq_base", kFloat, "",
     [](const Json& c) {
       const Json base = member(c, "rope_theta");
       return base == 10000.0 ? Json(nullptr) : base;
     }},
};
constexpr GgufKeyRow kGemma3Keys[] = {
    {"final_logit_softcapping", kFloat, "final_logit_softcapping"},
    {"attention.sliding_window", kUint, "sliding_window"},
};
constexpr GgufKeyRow kOlmo3Keys[] = {
    {"attention.sliding_window", kUint, "sliding_window"},
    {"attention.sliding_window_pattern", kBools, "",
     [](const Json& c) {
       Json windows = Json::array();
       for (const Json& type : member(c, "layer_types")) windows.push_back(type == "sliding_attention");
       return windows;
     }},
};
constexpr GgufKeyRow kGptOssKeys[] = {
    {"attention.sliding_window", kUint, "sliding_window"},
    {"expert_feed_forward_length", kUint, "intermediate_size"},
};
constexpr GgufKeyRow kGlm4MoeKeys[] = {
    {"rope.dimension_count", kUint, "",
     [](const Json& c) {
       const Json share = member(c, "partial_rotary_factor");
       return Json(static_cast<int64_t>(json_as<double>(head_width(c), "head_dim") *
                                        (share.is_null() ? 0.5 : json_as<double>(share, "partial_rotary_factor"))));
     }},
    {"expert_feed_forward_length", kUint, "moe_intermediate_size"},
    {"expert_shared_count", kUint, "n_shared_experts"},
    {"leading_dense_block_count", kUint, "first_k_dense_replace"},
    {"expert_gating_func", kUint, "", [](const Json&) { return Json(2); }},
    {"expert_weights_scale", kFloat, "routed_scaling_factor"},
    {"expert_weights_norm", kBool, "norm_topk_prob"},
    {"nextn_predict_layers", kUint, "num_nextn_predict_layers", nullptr, true},
};
// Latent attention is one head of keys and values, kv_lora_rank wide, for all heads of queries.
constexpr GgufKeyRow kDeepseekKeys[] = {
    {"attention.head_count_kv", kUint, "", [](const Json&) { return Json(1); }},
    {"leading_dense_block_count", kUint, "first_k_dense_replace"},
    {"vocab_size", kUint, "vocab_size"},
    {"attention.q_lora_rank", kUint, "q_lora_rank"},
    {"attention.kv_lora_rank", kUint, "kv_lora_rank"},
    {"attention.key_length", kUint, "",
     [](const Json& c) { return Json(whole(c, "kv_lora_rank") + whole(c, "qk_rope_head_dim")); }},
    {"attention.value_length", kUint, "kv_lora_rank"},
    {"attention.key_length_mla", kUint, "",
     [](const Json& c) { return Json(whole(c, "qk_nope_head_dim") + whole(c, "qk_rope_head_dim")); }},
    {"attention.value_length_mla", kUint, "v_head_dim"},
    {"expert_feed_forward_length", kUint, "moe_intermediate_size"},
    {"expert_shared_count", kUint, "n_shared_experts"},
    {"expert_weights_scale", kFloat, "routed_scaling_factor"},
    {"expert_weights_norm", kBool, "",
     [](const Json& c) { return member(c, "norm_topk_prob") == true ? Json(true) : Json(nullptr); }},
    {"rope.dimension_count", kUint, "qk_rope_head_dim"},
    {"rope.scaling.yarn_log_multiplier", kFloat, "",
     [](const Json& c) {
       const Json scale = scaling(c, "mscale_all_dim");
       return scale.is_null() ? Json(nullptr) : Json(0.1 * json_as<double>(scale, "mscale_all_dim"));
     }},
};
constexpr GgufKeyRow kGpt2Keys[] = {
    {"block_count", kUint, "n_layer"},
    {"context_length", kUint, "n_positions"},
    {"embedding_length", kUint, "n_embd"},
    {"feed_forward_length", kUint, "",
     [](const Json& c) {
       const Json width = member(c, "n_inner");
       return width.is_null() ? Json(4 * whole(c, "n_embd")) : width;
     }},
    {"attention.head_count", kUint, "n_head"},
    {"attention.layer_norm_epsilon", kFloat, "layer_norm_epsilon"},
};

bool rotates_three_of_four(const ModelConfig& config) {
  const std::vector<int64_t> unrotated = config.layers_without_rotation();
  for (size_t i = 0; i < unrotated.size(); ++i) {
    if (unrotated[i] != (i % 4 == 3 ? 1 : 0)) return false;
  }
  return true;
}

bool has_experts_in_steps(const ModelConfig& config) {
  int64_t step = 0;
  while (step < config.num_layers && !config.has_experts_at(step)) ++step;
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    if (config.has_experts_at(layer) != ((layer + 1) % (step + 1) == 0)) return false;
  }
  return true;
}

// By the root of a head's channels, or in the largest models of hidden_size / heads.
template <int64_t layers_of_largest>
bool scales_scores_by_width(const ModelConfig& config) {
  const auto width = static_cast<double>(config.num_layers == layers_of_largest
                                             ? config.hidden_size / config.num_attention_heads
                                             : config.query_head_dim());
  return config.query_pre_attn_scalar.value_or(static_cast<double>(config.query_head_dim())) == width;
}

// llama.cpp takes these for DeepSeek-V2-Lite, and no others.
bool is_as_large_as_lite(const ModelConfig& config) { return config.num_layers == 26 || config.num_layers == 27; }

constexpr GgufLimit kGemma2Limits[] = {{scales_scores_by_width<46>, "query_pre_attn_scalar other than a head's width"}};
constexpr GgufLimit kGemma3Limits[] = {{scales_scores_by_width<62>, "query_pre_attn_scalar other than a head's width"}};
constexpr GgufLimit kQwen3MoeLimits[] = {
    {[](const ModelConfig& c) { return !c.moe_router_pre_softmax; }, "norm_topk_prob false"},
};
constexpr GgufLimit kSmolLm3Limits[] = {{rotates_three_of_four, "no_rope_layers other than every fourth"}};
constexpr GgufLimit kLlama4Limits[] = {
    {rotates_three_of_four, "no_rope_layers other than every fourth"},
    {has_experts_in_steps, "moe_layers that are not every n-th"},
    {[](const ModelConfig& c) { return c.attention_chunk_size == 8192; }, "attention_chunk_size other than 8192"},
    {[](const ModelConfig& c) { return c.attn_temperature_scale == 0.1 && c.attn_temperature_floor == 8192; },
     "attn_scale other than 0.1, or floor_scale other than 8192"},
    {[](const ModelConfig& c) { return c.qk_l2_norm == (c.expert_count() != 128); },
     "use_qk_norm false, or true with 128 experts"},
};
constexpr GgufLimit kDeepseekLimits[] = {
    {[](const ModelConfig& c) { return c.q_lora_rank.has_value() != is_as_large_as_lite(c); },
     "no q_lora_rank in other than 26 or 27 layers, or one in these"},
};

const GgufArchitecture kArchitectures[] = {
    {.family = "llama", .name = "llama", .vocabulary = GgufVocabulary::kLlama,
     .tensors = {kAdjacentPairs, kDecoder, kMlp}, .keys = {kModelKeys, kHeadKeys}, .more_keys = kLlamaKeys,
     .has_rope_freqs = true},
    {.family = "mistral", .name = "llama", .vocabulary = GgufVocabulary::kLlama,
     .tensors = {kAdjacentPairs, kDecoder, kMlp}, .keys = {kModelKeys, kGivenHeadKeys}, .more_keys = kLlamaKeys,
     .has_rope_freqs = true},
    {.family = "mixtral", .name = "llama", .vocabulary = GgufVocabulary::kLlama,
     .tensors = {kAdjacentPairs, kDecoder, kMixtralExperts}, .keys = {kModelKeys, kGivenHeadKeys},
     .more_keys = kLlamaKeys, .has_rope_freqs = true},
    {.family = "smollm3", .name = "smollm3", .vocabulary = GgufVocabulary::kLlama,
     .tensors = {kAdjacentPairs, kDecoder, kMlp}, .keys = {kModelKeys, kGivenHeadKeys}, .more_keys = kLlamaKeys,
     .limits = kSmolLm3Limits},
    {.family = "llama4", .name = "llama4", .tensors = {kDecoder, kLlama4Tensors}, .keys = {kModelKeys, kHeadKeys},
     .more_keys = kLlama4Keys, .limits = kLlama4Limits, .has_rope_freqs = true},
    {.family = "qwen2", .name = "qwen2", .vocabulary = GgufVocabulary::kSentencePiece, .tensors = {kDecoder, kMlp},
     .keys = {kModelKeys, kGivenHeadKeys}},
    {.family = "qwen3", .name = "qwen3", .vocabulary = GgufVocabulary::kSentencePiece, .tensors = {kDecoder, kMlp},
     .keys = {kModelKeys, kHeadKeys}},
    {.family = "qwen3_moe", .name = "qwen3moe", .tensors = {kDecoder, kExperts}, .keys = {kModelKeys, kHeadKeys},
     .more_keys = kExpertKeys, .limits = kQwen3MoeLimits},
    {.family = "gemma2", .name = "gemma2", .vocabulary = GgufVocabulary::kGemma,
     .tensors = {kGemmaNorms, kDecoder, kMlp}, .keys = {kGemma2Keys}, .more_keys = kGemma2MoreKeys,
     .limits = kGemma2Limits, .window_period = 2},
    {.family = "gemma3", .name = "gemma3", .vocabulary = GgufVocabulary::kGemma,
     .tensors = {kGemmaNorms, kDecoder, kMlp}, .keys = {kModelKeys, kHeadKeys}, .more_keys = kGemma3Keys,
     .limits = kGemma3Limits, .window_period = 6},
    {.family = "olmo2", .name = "olmo2", .tensors = {kNormAfterAttention, kDecoder, kMlp},
     .keys = {kModelKeys, kGivenHeadKeys}},
    {.family = "olmo3", .name = "olmo2", .tensors = {kNormAfterAttention, kDecoder, kMlp},
     .keys = {kModelKeys, kGivenHeadKeys}, .more_keys = kOlmo3Keys, .window_period = 4},
    {.family = "deepseek_v2", .name = "deepseek2",
     .tensors = {kLatentAttention, kDecoder, kExperts, kSharedExperts, kMlp}, .keys = {kModelKeys, kHeadKeys},
     .more_keys = kDeepseekKeys, .limits = kDeepseekLimits},
    {.family = "deepseek_v3", .name = "deepseek2",
     .tensors = {kLatentAttention, kDecoder, kExperts, kSharedExperts, kMlp}, .keys = {kModelKeys, kHeadKeys},
     .more_keys = kDeepseekKeys, .limits = kDeepseekLimits},
    {.family = "glm4_moe", .name = "glm4moe", .vocabulary = GgufVocabulary::kGlm,
     .tensors = {kNormAfterAttention, kDecoder, kExperts, kSharedExperts, kMlp},
     .keys = {kModelKeys, kGivenHeadKeys}, .more_keys = kGlm4MoeKeys},
    {.family = "gpt_oss", .name = "gpt-oss", .tensors = {kGptOssTensors, kNormAfterAttention, kDecoder},
     .keys = {kModelKeys, kHeadKeys}, .more_keys = kGptOssKeys, .window_period = 2},
    {.family = "gpt2", .name = "gpt2", .tensors = {kGpt2Tensors, kDecoder}, .keys = {kGpt2Keys}},
};

}  // namespace
}  // namespace gguf_rows

namespace {

using gguf_rows::kArchitectures;

// A row's form of a name: # for the numbers between dots, which are added to `numbers`.
std::string pattern_of(std::string_view name, std::vector<int64_t>& numbers) {
  std::string pattern;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    int64_t number = 0;
    const auto read = std::from_chars(part.data(), part.data() + part.size(), number);
    const bool is_number = !part.empty() && read.ec == std::errc() && read.ptr == part.data() + part.size();
    if (is_number) numbers.push_back(number);
    if (begin > 0) pattern += '.';
    pattern += is_number ? "#" : part;
    begin = end + 1;
  }
  return pattern;
}

// A period n: windows in layers l with l % n < n - 1; 0 without windows; nothing for other patterns.
std::optional<int64_t> period_of_windows(const ModelConfig& config) {
  const std::vector<int64_t> windows = config.layers_with_window();
  if (std::ranges::find(windows, 1) == windows.end()) return 0;
  const auto global = std::ranges::find(windows, 0);
  // Longer than the model if all layers have one.
  const auto period = static_cast<size_t>(global - windows.begin()) + 1;
  for (size_t i = 0; i < windows.size(); ++i) {
    if (windows[i] != (i % period < period - 1 ? 1 : 0)) return std::nullopt;
  }
  return static_cast<int64_t>(period);
}

}  // namespace

const GgufArchitecture& gguf_architecture(const ModelFamily& family) {
  const auto found = std::ranges::find(kArchitectures, family.name, &GgufArchitecture::family);
  if (found != std::ranges::end(kArchitectures)) return *found;
  std::vector<std::string_view> names;
  for (const GgufArchitecture& architecture : kArchitectures) names.push_back(architecture.family);
  throw UserError(fmt::format("GGUF: models of the family {} are not provided", family.name),
                  fmt::format("provided are {}", fmt::join(names, ", ")));
}

std::vector<int64_t> numbers_in(std::string_view name) {
  std::vector<int64_t> numbers;
  pattern_of(name, numbers);
  return numbers;
}

std::vector<GgufTarget> gguf_targets(const GgufArchitecture& architecture, const std::string& name) {
  const auto find = [&](const std::string& whole, std::string_view suffix) {
    std::vector<GgufTarget> targets;
    std::vector<int64_t> numbers;
    const std::string pattern = pattern_of(whole, numbers);
    for (const std::span<const GgufTensorRow> rows : architecture.tensors) {
      for (size_t row = 0; row < rows.size(); ++row) {
        if (rows[row].from != pattern) continue;
        std::string to(rows[row].to);
        if (const size_t place = to.find('#'); place != std::string::npos)
          to.replace(place, 1, std::to_string(numbers.at(0)));
        targets.push_back({to + std::string(suffix), rows[row].change, row});
      }
      if (!targets.empty()) break;
    }
    return targets;
  };
  std::vector<GgufTarget> targets = find(name, "");
  for (const std::string_view suffix : {".weight", ".bias"}) {
    if (targets.empty() && name.ends_with(suffix)) targets = find(name.substr(0, name.size() - suffix.size()), suffix);
  }
  return targets;
}

int64_t check_gguf_limits(const GgufArchitecture& architecture, const ModelConfig& config,
                          std::vector<std::string>& notes) {
  std::vector<UserError> errors;
  const auto refuse = [&](std::string_view what) {
    errors.emplace_back(fmt::format("GGUF: llama.cpp's {} has no form for {}", architecture.name, what),
                        "it would compute another model; --save_hf keeps this one");
  };
  for (const GgufLimit& limit : architecture.limits) {
    if (!limit.holds(config)) refuse(limit.what);
  }
  if (config.use_rope_scaling && config.rope_scaling_type == RopeScalingType::kLlama3 && !architecture.has_rope_freqs) {
    refuse("rotary scaling of type llama3");
  }
  const std::optional<int64_t> period = period_of_windows(config);
  int64_t written = 0;
  if (architecture.window_period == 0) {
    if (period != 0) {
      notes.push_back(fmt::format("GGUF: llama.cpp's {} has no windows: texts longer than {} tokens are attended to "
                                  "as a whole",
                                  architecture.name, config.attention_window()));
    }
  } else if (!period) {
    refuse("windows in layers that follow no period");
  } else if (*period != 0 && *period != architecture.window_period &&
             std::min(*period, architecture.window_period) <= config.num_layers) {
    written = *period;
  }
  throw_if_any(errors);
  return written;
}

}  // namespace megalith
