// The family of an architecture: the one whose class says the whole of it. Conditions written out class by class check
// it for hundreds of architectures.
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <random>

#include "models/architecture.h"
#include "models/small_models.h"
#include "models/tiny_models.h"

namespace megalith {
namespace {

using namespace test;

bool norms_projections(const ModelConfig& c) {
  return c.qk_layernorm && !c.multi_latent_attention && c.qk_layernorm_scope == HeadNormScope::kProjection;
}

bool is_stretched_by_yarn(const ModelConfig& c) {
  return c.use_rope_scaling && c.rope_scaling_type == RopeScalingType::kYarn;
}

bool has_llamas_parts(const ModelConfig& c) {
  return c.normalization == Normalization::kRmsNorm && c.position_embedding() == PositionEmbedding::kRope && c.swiglu &&
         !c.has_linear_bias() && !c.multi_latent_attention && c.num_prediction_modules() == 0 &&
         c.norm_placement == NormPlacement::kPre && !norms_projections(c) && !is_stretched_by_yarn(c);
}

bool has_olmos_parts(const ModelConfig& c) {
  return c.normalization == Normalization::kRmsNorm && c.position_embedding() == PositionEmbedding::kRope && c.swiglu &&
         !c.has_linear_bias() && !c.add_qkv_bias && !c.has_experts() && c.num_prediction_modules() == 0 &&
         c.norm_placement == NormPlacement::kPost && norms_projections(c);
}

bool has_window(const ModelConfig& c) { return c.has_windows(); }
// Only in some layers.
bool has_mixed_windows(const ModelConfig& c) {
  const std::vector<int64_t> layers = c.layers_with_window();
  return has_window(c) && std::find(layers.begin(), layers.end(), 0) != layers.end();
}
// Layers with a window then rotate apart.
bool has_local_rotation(const ModelConfig& c) {
  const bool rotates = c.position_embedding() == PositionEmbedding::kRope;
  return rotates && has_window(c) && c.rotary_base_local &&
         (c.use_rope_scaling || *c.rotary_base_local != c.rotary_base);
}

// The number of layers without experts in front, or -1 when the others do not all have them.
int64_t dense_layers_in_front(const ModelConfig& c) {
  int64_t dense = 0;
  while (dense < c.num_layers && !c.has_experts_at(dense)) ++dense;
  for (int64_t layer = dense; layer < c.num_layers; ++layer) {
    if (!c.has_experts_at(layer)) return -1;
  }
  return dense;
}

bool chooses_among_groups(const ModelConfig& c) {
  return c.moe_router_num_groups.value_or(1) > 1 && c.moe_router_group_topk != c.moe_router_num_groups;
}

bool leaves_layers_unrotated(const ModelConfig& c) {
  const std::vector<int64_t> layers = c.layers_without_rotation();
  return std::find(layers.begin(), layers.end(), 1) != layers.end();
}

// Parts that only Llama 4's class has, besides its experts.
bool has_llama4s_extras(const ModelConfig& c) {
  return leaves_layers_unrotated(c) || c.attention_chunk_size > 0 || c.qk_l2_norm ||
         (c.has_experts() && c.moe_apply_probs_on_input);
}

// Parts of a decoder that only Gemma's classes have, or no class.
bool has_gemmas_extras(const ModelConfig& c) {
  const bool has_own_scale = !c.multi_latent_attention && c.query_pre_attn_scalar.value_or(0) > 0 &&
                             *c.query_pre_attn_scalar != static_cast<double>(c.head_dim());
  const bool is_stretched =
      c.position_embedding() == PositionEmbedding::kRope && c.rotary_seq_len_interpolation_factor != 1;
  return c.softmax_type != SoftmaxType::kVanilla || c.geglu || c.apply_layernorm_1p || c.scale_embeddings ||
         c.attn_logit_softcapping > 0 || c.final_logit_softcapping > 0 || has_own_scale || is_stretched;
}

bool has_gemmas_parts(const ModelConfig& c) {
  return c.geglu && c.apply_layernorm_1p && c.scale_embeddings && c.norm_placement == NormPlacement::kSandwich &&
         c.normalization == Normalization::kRmsNorm && c.position_embedding() == PositionEmbedding::kRope &&
         !c.has_linear_bias() && !c.add_qkv_bias && !c.multi_latent_attention && !c.has_experts() &&
         c.num_prediction_modules() == 0 && c.softmax_type == SoftmaxType::kVanilla && !has_llama4s_extras(c);
}

bool is_gemma2(const ModelConfig& c) {
  return has_gemmas_parts(c) && !is_stretched_by_yarn(c) && !c.qk_layernorm &&
         c.rotary_seq_len_interpolation_factor == 1 && !has_local_rotation(c);
}

// Its layers with a window are never stretched.
bool is_gemma3(const ModelConfig& c) {
  return has_gemmas_parts(c) && !is_stretched_by_yarn(c) && c.qk_layernorm && !norms_projections(c) &&
         c.attn_logit_softcapping == 0 && (!has_window(c) || c.rotary_base_local || !c.is_stretched());
}

bool is_mixtral(const ModelConfig& c) {
  return has_llamas_parts(c) && !c.qk_layernorm && !c.add_qkv_bias && c.has_experts() &&
         dense_layers_in_front(c) == 0 && c.expert_ffn_size() == c.ffn_size() && c.shared_expert_size() == 0 &&
         c.moe_router_score_function == RouterScore::kSoftmax && !c.moe_router_pre_softmax &&
         c.moe_router_num_groups.value_or(1) == 1 && c.moe_router_topk_scaling_factor.value_or(1) == 1 &&
         !has_mixed_windows(c);
}

bool is_qwen3_moe(const ModelConfig& c) {
  return has_llamas_parts(c) && c.qk_layernorm && !c.add_qkv_bias && c.has_experts() && c.shared_expert_size() == 0 &&
         c.moe_router_score_function == RouterScore::kSoftmax && !chooses_among_groups(c) &&
         c.moe_router_topk_scaling_factor.value_or(1) == 1 && !has_mixed_windows(c);
}

bool is_glm4_moe(const ModelConfig& c) {
  return c.normalization == Normalization::kRmsNorm && c.position_embedding() == PositionEmbedding::kRope && c.swiglu &&
         !c.has_linear_bias() && !c.multi_latent_attention && c.norm_placement == NormPlacement::kPre &&
         !norms_projections(c) && !is_stretched_by_yarn(c) && !has_window(c) && c.has_experts() &&
         dense_layers_in_front(c) >= 0 && c.shared_expert_size() % c.expert_ffn_size() == 0 &&
         c.moe_router_score_function == RouterScore::kSigmoid && c.moe_router_enable_expert_bias &&
         c.moe_router_topk > 1 && !chooses_among_groups(c);
}

// YaRN's scale of the softmax without its tables.
bool scales_softmax_only(const ModelConfig& c) {
  return c.rope_type == RopeType::kRope && c.rotary_scaling_factor > 1 && c.mscale_all_dim != 0;
}

bool has_deepseeks_parts(const ModelConfig& c) {
  return c.multi_latent_attention && c.qk_layernorm && c.has_experts() && c.normalization == Normalization::kRmsNorm &&
         c.swiglu && !c.has_linear_bias() && dense_layers_in_front(c) >= 0 &&
         c.shared_expert_size() % c.expert_ffn_size() == 0 && !scales_softmax_only(c) && !has_window(c) &&
         c.norm_placement == NormPlacement::kPre;
}

bool is_deepseek_v2(const ModelConfig& c) {
  return has_deepseeks_parts(c) && c.moe_router_score_function == RouterScore::kSoftmax && c.moe_router_pre_softmax &&
         (!chooses_among_groups(c) || c.moe_router_group_score == GroupScore::kMax) && c.num_prediction_modules() == 0;
}

bool is_deepseek_v3(const ModelConfig& c) {
  return has_deepseeks_parts(c) && c.moe_router_score_function == RouterScore::kSigmoid &&
         c.moe_router_enable_expert_bias && c.moe_router_topk > 1 &&
         (!chooses_among_groups(c) || c.moe_router_group_score == GroupScore::kTwo ||
          (c.moe_router_group_score == GroupScore::kTopSum && c.moe_router_topk / *c.moe_router_group_topk == 2));
}

bool is_gpt2(const ModelConfig& c) {
  return c.position_embedding() == PositionEmbedding::kLearnedAbsolute &&
         c.normalization == Normalization::kLayerNorm && !c.apply_layernorm_1p &&
         c.activation() == ops::ActivationKind::kGeluTanh && c.has_linear_bias() &&
         c.num_kv_heads() == c.num_attention_heads &&
         (!c.kv_channels || *c.kv_channels * c.num_attention_heads == c.hidden_size) && !c.has_experts() &&
         !c.multi_latent_attention && !c.qk_layernorm && c.num_prediction_modules() == 0 && !has_window(c) &&
         c.norm_placement == NormPlacement::kPre;
}

// Biases everywhere, and a softmax with a learned sink.
bool is_gpt_oss(const ModelConfig& c) {
  const bool has_own_scale = c.query_pre_attn_scalar && *c.query_pre_attn_scalar != static_cast<double>(c.head_dim());
  return c.normalization == Normalization::kRmsNorm && !c.apply_layernorm_1p &&
         c.position_embedding() == PositionEmbedding::kRope && c.quick_geglu && c.glu_linear_offset == 1 &&
         c.activation_func_clamp_value == 7.0 && c.has_linear_bias() && !c.multi_latent_attention && c.has_experts() &&
         dense_layers_in_front(c) == 0 && c.expert_ffn_size() == c.ffn_size() && c.shared_expert_size() == 0 &&
         c.moe_router_score_function == RouterScore::kSoftmax && !c.moe_router_pre_softmax &&
         !chooses_among_groups(c) && c.moe_router_topk_scaling_factor.value_or(1) == 1 &&
         c.softmax_type == SoftmaxType::kLearnable && !has_own_scale && c.attn_logit_softcapping == 0 &&
         c.final_logit_softcapping == 0 && !c.scale_embeddings && c.rotary_seq_len_interpolation_factor == 1 &&
         !has_llama4s_extras(c) && !c.qk_layernorm && !has_local_rotation(c) &&
         c.norm_placement == NormPlacement::kPre && c.num_prediction_modules() == 0;
}

// Neighbours are rotated, and all of a head; chunks are of layers that rotate.
bool is_llama4(const ModelConfig& c) {
  const std::vector<int64_t> unrotated = c.layers_without_rotation();
  const bool any_rotates = std::find(unrotated.begin(), unrotated.end(), 0) != unrotated.end();
  return has_llamas_parts(c) && !c.qk_layernorm && !c.add_qkv_bias && !has_window(c) && !has_gemmas_extras(c) &&
         c.has_experts() && c.moe_apply_probs_on_input && c.shared_expert_size() == c.expert_ffn_size() &&
         c.moe_router_score_function == RouterScore::kSigmoid && !c.moe_router_enable_expert_bias &&
         c.moe_router_topk_scaling_factor.value_or(1) == 1 && !chooses_among_groups(c) && c.rotary_interleaved &&
         c.rotary_percent == 1 && (any_rotates || c.attention_chunk_size == 0);
}

// An encoder and decoder, with an output that is scaled exactly where it is tied.
bool is_t5(const ModelConfig& c) {
  return c.normalization == Normalization::kRmsNorm && !c.apply_layernorm_1p &&
         c.position_embedding() == PositionEmbedding::kRelative && !c.has_experts() && (c.relu || c.geglu) &&
         !c.has_linear_bias() && !c.add_qkv_bias && c.num_kv_heads() == c.num_attention_heads &&
         c.query_pre_attn_scalar == 1.0 && c.final_logit_softcapping == 0 &&
         c.scale_decoder_outputs != c.untie_embeddings_and_output_weights;
}

// Biases everywhere, learned positions and one form of GELU in the layers and the head; the norms tell the two apart.
std::string expected_encoder(const ModelConfig& c) {
  const bool is_one_gelu = c.activation() == ops::ActivationKind::kGelu || c.openai_gelu;
  const bool has_class =
      c.position_embedding() == PositionEmbedding::kLearnedAbsolute && c.normalization == Normalization::kLayerNorm &&
      !c.apply_layernorm_1p && is_one_gelu && !c.is_gated() && !c.squared_relu && c.has_linear_bias() &&
      c.num_kv_heads() == c.num_attention_heads && c.token_types() > 0 &&
      (!c.kv_channels || *c.kv_channels * c.num_attention_heads == c.hidden_size) && !c.has_experts() &&
      !c.multi_latent_attention && !c.qk_layernorm && !has_window(c) && !has_gemmas_extras(c);
  if (!has_class) return "encoder";
  if (c.norm_placement == NormPlacement::kPostLn && c.embedding_norm) return "bert";
  return c.norm_placement == NormPlacement::kPre && !c.embedding_norm ? "megatron_bert" : "encoder";
}

ModelConfig small_flux(double theta) {
  ModelConfig config;
  config.model_type = ModelType::kDiffusion;
  config.num_joint_layers = 1;
  config.num_single_layers = 2;
  config.hidden_size = 32;
  config.num_attention_heads = 2;
  config.axes_dim = {4, 6, 6};
  config.theta = theta;
  return config;
}

bool is_smollm3(const ModelConfig& c) {
  return has_llamas_parts(c) && !c.has_experts() && !c.qk_layernorm && !c.add_qkv_bias && !has_window(c) &&
         !has_gemmas_extras(c) && leaves_layers_unrotated(c) && c.attention_chunk_size == 0 && !c.qk_l2_norm &&
         c.attn_temperature_scale == 0;
}

bool has_lfm2s_parts(const ModelConfig& c) {
  return has_llamas_parts(c) && c.qk_layernorm && !c.add_qkv_bias && !has_window(c) && !has_gemmas_extras(c) &&
         !has_llama4s_extras(c);
}

bool is_lfm2_moe(const ModelConfig& c) {
  return has_lfm2s_parts(c) && c.has_experts() && c.shared_expert_size() == 0 && dense_layers_in_front(c) >= 0 &&
         c.moe_router_score_function == RouterScore::kSigmoid && c.moe_router_topk > 1 && !chooses_among_groups(c);
}

std::string expected_family(const ModelConfig& c) {
  // diffusers' class has one base of rotation.
  if (c.model_type == ModelType::kDiffusion) return c.theta == 10000 ? "flux" : "flux_like";
  if (c.has_encoder()) return is_t5(c) ? "t5" : "megatron_t5";
  if (c.model_type == ModelType::kBert) return expected_encoder(c);
  if (c.model_type == ModelType::kBiencoder) return "biencoder";
  if (c.embedding_norm) return "gpt";
  if (c.num_convolutions() > 0) {
    const bool is_dense = has_lfm2s_parts(c) && !c.has_experts();
    return is_dense ? "lfm2" : is_lfm2_moe(c) ? "lfm2_moe" : "gpt";
  }
  if (is_gpt_oss(c)) return "gpt_oss";
  if (is_gemma2(c)) return "gemma2";
  if (is_gemma3(c)) return "gemma3";
  if (is_llama4(c)) return "llama4";
  if (is_smollm3(c)) return "smollm3";
  if (has_gemmas_extras(c) || has_llama4s_extras(c)) return "gpt";
  if (has_olmos_parts(c)) {
    if (!has_window(c)) return c.use_rope_scaling ? "olmo3" : "olmo2";
    // Layers with a window rotate by the same base, and nothing is stretched there.
    const bool is_olmo3 = c.use_rope_scaling ? c.rotary_base_local == c.rotary_base : !has_local_rotation(c);
    return is_olmo3 ? "olmo3" : "gpt";
  }
  if (has_local_rotation(c)) return "gpt";
  const bool is_dense_llama = has_llamas_parts(c) && !c.has_experts();
  if (is_dense_llama && !c.add_qkv_bias && !c.qk_layernorm) {
    return has_mixed_windows(c) ? "gpt" : has_window(c) ? "mistral" : "llama";
  }
  if (is_dense_llama && c.add_qkv_bias && !c.qk_layernorm) return "qwen2";
  if (is_dense_llama && !c.add_qkv_bias && c.qk_layernorm) return "qwen3";
  if (is_qwen3_moe(c)) return "qwen3_moe";
  if (is_mixtral(c)) return "mixtral";
  if (is_glm4_moe(c)) return "glm4_moe";
  if (is_lfm2_moe(c)) return "lfm2_moe";
  if (is_deepseek_v2(c)) return "deepseek_v2";
  if (is_deepseek_v3(c)) return "deepseek_v3";
  return is_gpt2(c) ? "gpt2" : "gpt";
}

// One option of the model takes another value, or a few that belong together do.
using Change = std::function<void(ModelConfig&, std::mt19937&)>;

int64_t pick(std::mt19937& random, std::initializer_list<int64_t> values) {
  return values.begin()[random() % values.size()];
}

const std::vector<Change>& changes() {
  static const std::vector<Change> list = {
      [](ModelConfig& c, std::mt19937&) { c.swiglu = !c.swiglu; },
      [](ModelConfig& c, std::mt19937&) { c.squared_relu = !c.squared_relu; },
      [](ModelConfig& c, std::mt19937&) { c.geglu = !c.geglu, c.swiglu = false; },
      [](ModelConfig& c, std::mt19937&) { c.relu = !c.relu, c.swiglu = c.geglu = false; },
      [](ModelConfig& c, std::mt19937&) { c.scale_decoder_outputs = !c.scale_decoder_outputs; },
      [](ModelConfig& c, std::mt19937&) { c.query_pre_attn_scalar.reset(); },
      [](ModelConfig& c, std::mt19937& r) {
        if (r() % 2 == 0)
          c.decoder_num_layers.reset();
        else
          c.decoder_num_layers = 3;
      },
      [](ModelConfig& c, std::mt19937&) {
        c.relative_attention_num_buckets = 16, c.relative_attention_max_distance = 20;
      },
      [](ModelConfig& c, std::mt19937&) { c.quick_geglu = true, c.swiglu = c.geglu = false; },
      [](ModelConfig& c, std::mt19937& r) { c.glu_linear_offset = r() % 2 == 0 ? 0 : 1; },
      [](ModelConfig& c, std::mt19937& r) {
        if (r() % 2 == 0)
          c.activation_func_clamp_value.reset();
        else
          c.activation_func_clamp_value = r() % 2 == 0 ? 6 : 7;
      },
      [](ModelConfig& c, std::mt19937&) { c.scale_embeddings = !c.scale_embeddings; },
      [](ModelConfig& c, std::mt19937& r) { c.no_rope_freq = r() % 2 == 0 ? "2" : ""; },
      [](ModelConfig& c, std::mt19937& r) { c.attention_chunk_size = r() % 2 == 0 ? 5 : 0; },
      [](ModelConfig& c, std::mt19937& r) {
        c.layer_types.assign(static_cast<size_t>(c.num_layers), "full_attention");
        if (r() % 4 != 0 && c.num_layers > 0) c.layer_types[0] = "conv";
      },
      [](ModelConfig& c, std::mt19937& r) { c.conv_kernel_size = 2 + static_cast<int64_t>(r() % 3); },
      [](ModelConfig& c, std::mt19937&) { c.conv_bias = !c.conv_bias; },
      [](ModelConfig& c, std::mt19937& r) {
        c.attn_temperature_scale = r() % 2 == 0 ? 0.3 : 0;
        c.attn_temperature_floor = 100;
      },
      [](ModelConfig& c, std::mt19937&) { c.qk_l2_norm = !c.qk_l2_norm; },
      [](ModelConfig& c, std::mt19937&) { c.moe_apply_probs_on_input = !c.moe_apply_probs_on_input; },
      [](ModelConfig& c, std::mt19937& r) { c.softmax_type = static_cast<SoftmaxType>(r() % 3); },
      [](ModelConfig& c, std::mt19937& r) {
        c.attn_logit_softcapping = r() % 2 == 0 ? 50 : 0;
        c.final_logit_softcapping = r() % 2 == 0 ? 30 : 0;
      },
      [](ModelConfig& c, std::mt19937& r) { c.query_pre_attn_scalar = r() % 2 == 0 ? 8 : 6; },
      [](ModelConfig& c, std::mt19937&) { c.rotary_seq_len_interpolation_factor = 8; },
      [](ModelConfig& c, std::mt19937&) { c.openai_gelu = !c.openai_gelu; },
      [](ModelConfig& c, std::mt19937&) { c.bias_gelu_fusion = !c.bias_gelu_fusion; },
      [](ModelConfig& c, std::mt19937&) { c.add_bias_linear = !c.add_bias_linear; },
      [](ModelConfig& c, std::mt19937&) { c.disable_bias_linear = !c.disable_bias_linear; },
      [](ModelConfig& c, std::mt19937&) { c.add_qkv_bias = !c.add_qkv_bias; },
      [](ModelConfig& c, std::mt19937&) { c.qk_layernorm = !c.qk_layernorm; },
      [](ModelConfig& c, std::mt19937& r) { c.qk_layernorm_scope = static_cast<HeadNormScope>(r() % 2); },
      [](ModelConfig& c, std::mt19937& r) { c.norm_placement = static_cast<NormPlacement>(r() % 4); },
      [](ModelConfig& c, std::mt19937&) { c.embedding_norm = !c.embedding_norm; },
      [](ModelConfig& c, std::mt19937&) { c.bert_binary_head = !c.bert_binary_head; },
      [](ModelConfig& c, std::mt19937& r) {
        c.num_token_types = pick(r, {0, 2, 3});
      },
      [](ModelConfig& c, std::mt19937&) { c.apply_layernorm_1p = !c.apply_layernorm_1p; },
      [](ModelConfig& c, std::mt19937&) { c.untie_embeddings_and_output_weights = false; },
      [](ModelConfig& c, std::mt19937&) { c.multi_latent_attention = !c.multi_latent_attention; },
      [](ModelConfig& c, std::mt19937&) { c.group_query_attention = !c.group_query_attention; },
      [](ModelConfig& c, std::mt19937&) { c.use_rotary_position_embeddings = true; },
      [](ModelConfig& c, std::mt19937&) { c.use_rope_scaling = true; },
      [](ModelConfig& c, std::mt19937&) {
        c.use_rope_scaling = true;
        c.rope_scaling_type = RopeScalingType::kYarn;
      },
      [](ModelConfig& c, std::mt19937&) { c.rope_scaling_attention_factor = 1.5; },
      [](ModelConfig& c, std::mt19937&) { c.rotary_interleaved = true; },
      [](ModelConfig& c, std::mt19937&) { c.rotary_percent = 0.5; },
      [](ModelConfig& c, std::mt19937&) { c.rotary_base = 123456.75; },
      [](ModelConfig& c, std::mt19937&) { c.attention_dropout = 0.25, c.hidden_dropout = 0.125; },
      [](ModelConfig& c, std::mt19937&) { c.vocab_size.reset(), c.eos_token_ids = {3}; },
      [](ModelConfig& c, std::mt19937& r) {
        c.mtp_num_layers = pick(r, {0, 1});
      },
      [](ModelConfig& c, std::mt19937& r) {
        c.num_query_groups = pick(r, {1, 2, 4, 6});
      },
      [](ModelConfig& c, std::mt19937& r) {
        c.kv_channels = pick(r, {4, 6, 8});
      },
      [](ModelConfig& c, std::mt19937&) { c.kv_channels.reset(); },
      [](ModelConfig& c, std::mt19937& r) {
        c.ffn_hidden_size = pick(r, {12, 20});
      },
      [](ModelConfig& c, std::mt19937& r) { c.normalization = static_cast<Normalization>(r() % 2); },
      [](ModelConfig& c, std::mt19937& r) { c.position_embedding_type = static_cast<PositionEmbedding>(r() % 4); },
      [](ModelConfig& c, std::mt19937& r) {
        c.num_experts = pick(r, {0, 4, 8});
      },
      [](ModelConfig& c, std::mt19937& r) {
        c.moe_ffn_hidden_size = pick(r, {12, 20});
      },
      [](ModelConfig& c, std::mt19937& r) {
        c.moe_router_topk = pick(r, {1, 2, 4});
      },
      [](ModelConfig& c, std::mt19937& r) { c.moe_layer_freq = r() % 2 == 0 ? "[1,0,1]" : "2"; },
      [](ModelConfig& c, std::mt19937&) { c.moe_layer_freq = "1"; },
      [](ModelConfig& c, std::mt19937&) { c.moe_router_pre_softmax = !c.moe_router_pre_softmax; },
      [](ModelConfig& c, std::mt19937&) { c.moe_router_enable_expert_bias = !c.moe_router_enable_expert_bias; },
      [](ModelConfig& c, std::mt19937& r) { c.moe_router_score_function = static_cast<RouterScore>(r() % 2); },
      [](ModelConfig& c, std::mt19937& r) { c.moe_router_group_score = static_cast<GroupScore>(r() % 3); },
      [](ModelConfig& c, std::mt19937& r) { c.moe_router_dtype = static_cast<RouterPrecision>(r() % 3); },
      [](ModelConfig& c, std::mt19937& r) {
        c.moe_router_num_groups = pick(r, {1, 2, 4});
        c.moe_router_group_topk = std::min<int64_t>(pick(r, {1, 2, 4}), *c.moe_router_num_groups);
      },
      [](ModelConfig& c, std::mt19937&) { c.moe_router_num_groups.reset(), c.moe_router_group_topk.reset(); },
      [](ModelConfig& c, std::mt19937& r) { c.moe_router_topk_scaling_factor = r() % 2 == 0 ? 1 : 2.5; },
      [](ModelConfig& c, std::mt19937& r) {
        c.moe_shared_expert_intermediate_size = pick(r, {0, 12, 18, 24});
      },
      [](ModelConfig& c, std::mt19937&) {
        c.moe_shared_expert_intermediate_size.reset();
        c.num_shared_experts = 2;
      },
      [](ModelConfig& c, std::mt19937& r) {
        c.moe_router_load_balancing_type = static_cast<RouterBalancing>(r() % 4);
        c.moe_router_topk = pick(r, {1, 2});
        c.moe_aux_loss_coeff = 0.01;
      },
      [](ModelConfig& c, std::mt19937&) { c.moe_expert_capacity_factor = 1.5, c.moe_z_loss_coeff = 0.001; },
      [](ModelConfig& c, std::mt19937& r) {
        c.window_size = r() % 3 == 0 ? std::vector<int64_t>{-1, 0} : std::vector<int64_t>{pick(r, {2, 7}), 0};
      },
      [](ModelConfig& c, std::mt19937& r) {
        if (c.attention_window() == 0) c.window_size = {2, 0};
        c.window_attn_skip_freq = r() % 4 == 0 ? "1" : r() % 2 == 0 ? "2" : "[1]*" + std::to_string(c.num_layers);
      },
      [](ModelConfig& c, std::mt19937& r) {
        if (c.attention_window() == 0) c.window_size = {2, 0};
        c.rotary_base_local = r() % 2 == 0 ? 250 : c.rotary_base;
      },
      [](ModelConfig& c, std::mt19937&) { c.q_lora_rank = 10; },
      [](ModelConfig& c, std::mt19937&) { c.rope_type = RopeType::kRope; },
      [](ModelConfig& c, std::mt19937&) { c.rotary_scaling_factor = 40; },
      [](ModelConfig& c, std::mt19937& r) { c.mscale_all_dim = r() % 2 == 0 ? 0.707 : 0; },
  };
  return list;
}

TEST(Families, AnArchitectureBelongsToTheFirstWhoseClassSaysTheWholeOfIt) {
  ModelConfig qwen2 = tiny_config(), qwen3 = qwen2, mistral = qwen2, smollm3 = qwen2;
  smollm3.no_rope_freq = "2";
  mistral.window_size = {3, 0};
  qwen2.add_qkv_bias = true;
  qwen3.qk_layernorm = true;
  ModelConfig megatron_t5 = small_t5(false);
  megatron_t5.normalization = Normalization::kLayerNorm;
  ModelConfig biencoder = small_bert(NormPlacement::kPre);
  biencoder.model_type = ModelType::kBiencoder;
  // Few of the changes are FLUX's to make.
  const ModelConfig flux = small_flux(10000), flux_like = small_flux(500);
  const std::vector<ModelConfig> starts = {tiny_config(),
                                           mistral,
                                           qwen2,
                                           qwen3,
                                           smollm3,
                                           small_gemma(false),
                                           small_gemma(true),
                                           small_mixtral(),
                                           small_deepseek(false),
                                           small_deepseek(true),
                                           small_gpt2(),
                                           small_qwen3_moe(),
                                           small_olmo(false),
                                           small_olmo(true),
                                           small_glm(),
                                           small_gpt_oss(),
                                           small_llama4(),
                                           small_lfm2(false),
                                           small_lfm2(true),
                                           small_t5(false),
                                           small_t5(true),
                                           megatron_t5,
                                           small_bert(NormPlacement::kPostLn),
                                           small_bert(NormPlacement::kPre),
                                           biencoder,
                                           flux,
                                           flux,
                                           flux,
                                           flux_like,
                                           flux_like,
                                           flux_like};
  std::mt19937 random(20);
  std::map<std::string, int> found;
  for (int round = 0; round < 125 * static_cast<int>(starts.size()); ++round) {
    ModelConfig config = starts[static_cast<size_t>(round) % starts.size()];
    for (int64_t i = pick(random, {0, 1, 1, 2, 3}); i > 0; --i) changes()[random() % changes().size()](config, random);
    if (!check_model_config(config).empty()) continue;
    const std::string family(family_for(config).name);
    ++found[family];
    std::string text;
    for (const auto& [name, value] : architecture_of(config)) text += fmt::format("{}: {}\n", name, value);
    ASSERT_EQ(family, expected_family(config)) << "round " << round << "\n" << text;
  }
  // As many as there are starts of one kind at least: no condition was met by accident only.
  for (const ModelFamily* family : model_families()) EXPECT_GT(found[std::string(family->name)], 40) << family->name;
}

// Its router needs no softmax of its own where one expert is chosen, and no file says how experts are balanced.
TEST(Families, HowExpertsAreBalancedMakesNoOtherFamily) {
  ModelConfig config = small_mixtral();
  config.moe_router_topk = 1;
  config.moe_router_load_balancing_type = RouterBalancing::kSinkhorn;
  ASSERT_TRUE(check_model_config(config).empty());
  EXPECT_EQ(family_for(config).name, "mixtral");
}

TEST(Families, EachOptionThatChangesWeightsIsSaidOrRefused) {
  for (const ModelConfig& start :
       {tiny_config(), small_gemma(false), small_gemma(true), small_mixtral(), small_deepseek(true), small_gpt2(),
        small_qwen3_moe(), small_olmo(true), small_glm(), small_gpt_oss(), small_llama4(), small_lfm2(true),
        small_t5(false), small_t5(true), small_bert(NormPlacement::kPostLn), small_bert(NormPlacement::kPre)}) {
    const ModelFamily& family = family_for(start);
    for (const auto& change : changes()) {
      std::mt19937 random(7);
      ModelConfig config = start;
      change(config, random);
      if (!config.vocab_size || !check_model_config(config).empty()) continue;
      ModelConfig back;
      try {
        back = family.from_hf(make_hf_config(family, config, at::kFloat));
      } catch (const UserError&) {
        continue;
      }
      back.mtp_num_layers = config.mtp_num_layers;
      EXPECT_EQ(meaning_of(back), meaning_of(config)) << family.name;
    }
  }
}

std::string export_error(const ModelConfig& config) {
  try {
    make_hf_config(family_for(config), config, at::kFloat);
  } catch (const UserError& error) {
    return error.message();
  }
  return "";
}

TEST(Families, AnExportThatCannotBeNamesTheOptionsInItsWay) {
  ModelConfig config = tiny_config();
  EXPECT_EQ(export_error(config), "");
  config.norm_epsilon = 2e-5;
  EXPECT_EQ(export_error(config), "");
  config.position_embedding_type = PositionEmbedding::kNone;
  config.rotary_base = 10000;
  EXPECT_EQ(export_error(config),
            "no Hugging Face class has this architecture, so it cannot be exported; the nearest, LlamaForCausalLM, has "
            "position_embedding_type rope, not none");
  config = tiny_config();
  config.add_qkv_bias = config.qk_layernorm = true;
  EXPECT_NE(export_error(config).find("Qwen2ForCausalLM, has qk_layernorm false, not true"), std::string::npos)
      << export_error(config);
  config = tiny_config();
  config.rotary_percent = 0.5;
  config.kv_channels = 8;
  EXPECT_EQ(family_for(config).name, "llama");
  EXPECT_NE(export_error(config).find("rotary_percent 0.5"), std::string::npos) << export_error(config);
}

TEST(Families, OptionsWithoutEffectMakeNoOtherMeaning) {
  ModelConfig swiglu = tiny_config();
  swiglu.bias_gelu_fusion = false;
  EXPECT_EQ(meaning_of(swiglu), meaning_of(tiny_config()));
  EXPECT_NE(architecture_of(swiglu), architecture_of(tiny_config()));  // the record in checkpoints stays as it was
  ModelConfig latent = small_deepseek(true), other = latent;
  other.kv_channels = 5;
  other.use_rope_scaling = true;
  other.rope_type = RopeType::kRope;
  other.moe_router_pre_softmax = true;
  other.moe_router_dtype = RouterPrecision::kFp64;
  EXPECT_EQ(meaning_of(other), meaning_of(latent));
  other.v_head_dim += 1;
  EXPECT_NE(meaning_of(other), meaning_of(latent));
}

}  // namespace
}  // namespace megalith
