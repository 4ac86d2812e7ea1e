// See small_models.h.
#include "models/small_models.h"

#include "models/tiny_models.h"

namespace megalith::test {

ModelConfig small_bert(NormPlacement placement) {
  ModelConfig config;
  config.model_type = ModelType::kBert;
  config.num_layers = 2;
  config.hidden_size = 24;
  config.num_attention_heads = 4;
  config.vocab_size = 37;
  config.max_position_embeddings = 16;
  config.bias_gelu_fusion = false;
  config.norm_placement = placement;
  config.embedding_norm = placement == NormPlacement::kPostLn;
  return config;
}

ModelConfig small_gpt2() {
  ModelConfig config;
  config.num_layers = 2;
  config.hidden_size = 24;
  config.num_attention_heads = 4;
  config.vocab_size = 37;
  config.max_position_embeddings = 16;
  return config;
}

ModelConfig small_gemma(bool is_third) {
  ModelConfig config = tiny_config();
  config.swiglu = false;
  config.geglu = config.apply_layernorm_1p = config.scale_embeddings = true;
  config.norm_placement = NormPlacement::kSandwich;
  config.query_pre_attn_scalar = 8;
  config.window_size = {3, 0};
  config.window_attn_skip_freq = "2";
  config.qk_layernorm = is_third;
  if (is_third) config.rotary_base_local = 100;
  if (!is_third) config.attn_logit_softcapping = config.final_logit_softcapping = 30;
  return config;
}

ModelConfig small_mixtral() {
  ModelConfig config = tiny_config();
  config.num_layers = 3;
  config.num_experts = 8;
  return config;
}

ModelConfig small_llama4() {
  ModelConfig config = small_mixtral();
  config.rotary_interleaved = config.qk_l2_norm = config.moe_apply_probs_on_input = true;
  config.no_rope_freq = "3";
  config.attention_chunk_size = 4;
  config.attn_temperature_scale = 0.2;
  config.moe_layer_freq = "[0,1,1]";
  config.moe_ffn_hidden_size = config.moe_shared_expert_intermediate_size = 12;
  config.moe_router_topk = 1;
  config.moe_router_score_function = RouterScore::kSigmoid;
  return config;
}

ModelConfig small_deepseek(bool is_v3) {
  ModelConfig config = small_mixtral();
  config.group_query_attention = false;
  config.kv_channels.reset();
  config.multi_latent_attention = config.qk_layernorm = true;
  config.moe_ffn_hidden_size = 12;
  config.moe_shared_expert_intermediate_size = 24;
  config.moe_layer_freq = "[0,1,1]";
  config.moe_router_topk = 4;
  config.moe_router_score_function = is_v3 ? RouterScore::kSigmoid : RouterScore::kSoftmax;
  (is_v3 ? config.moe_router_enable_expert_bias : config.moe_router_pre_softmax) = true;
  config.moe_router_group_score = is_v3 ? GroupScore::kTopSum : GroupScore::kMax;
  config.moe_router_num_groups = 4;
  config.moe_router_group_topk = 2;
  return config;
}

ModelConfig small_olmo(bool is_3) {
  ModelConfig config = tiny_config();
  config.norm_placement = NormPlacement::kPost;
  config.qk_layernorm = true;
  config.qk_layernorm_scope = HeadNormScope::kProjection;
  if (!is_3) return config;
  config.window_size = {3, 0};
  config.window_attn_skip_freq = "2";
  config.rotary_base_local = config.rotary_base;
  config.use_rope_scaling = true;
  config.rope_scaling_type = RopeScalingType::kYarn;
  return config;
}

ModelConfig small_qwen3_moe() {
  ModelConfig config = small_mixtral();
  config.qk_layernorm = config.moe_router_pre_softmax = true;
  config.moe_ffn_hidden_size = 12;
  config.moe_layer_freq = "[0,1,0]";
  return config;
}

ModelConfig small_glm() {
  ModelConfig config = small_mixtral();
  config.kv_channels = 8;
  config.rotary_percent = 0.5;
  config.add_qkv_bias = true;
  config.moe_ffn_hidden_size = config.moe_shared_expert_intermediate_size = 12;
  config.moe_layer_freq = "[0,1,1]";
  config.moe_router_topk = 4;
  config.moe_router_score_function = RouterScore::kSigmoid;
  config.moe_router_enable_expert_bias = true;
  return config;
}

ModelConfig small_gpt_oss() {
  ModelConfig config = small_mixtral();
  config.swiglu = false;
  config.quick_geglu = config.add_bias_linear = true;
  config.glu_linear_offset = 1;
  config.activation_func_clamp_value = 7;
  config.softmax_type = SoftmaxType::kLearnable;
  config.window_size = {3, 0};
  config.window_attn_skip_freq = "2";
  return config;
}

ModelConfig small_lfm2(bool has_experts) {
  ModelConfig config = tiny_config();
  config.num_layers = 3;
  config.qk_layernorm = true;
  config.layer_types = {"conv", "full_attention", "conv"};
  if (!has_experts) return config;
  config.num_experts = 8;
  config.moe_ffn_hidden_size = 12;
  config.moe_layer_freq = "[0,1,1]";
  config.moe_router_topk = 4;
  config.moe_router_score_function = RouterScore::kSigmoid;
  config.moe_router_enable_expert_bias = true;
  return config;
}

ModelConfig small_t5(bool is_v1_1) {
  ModelConfig config = tiny_config();
  config.model_type = ModelType::kT5;
  config.rotary_base = RotaryOptions().rotary_base;
  config.decoder_num_layers = 1;
  config.group_query_attention = false;
  config.position_embedding_type = PositionEmbedding::kRelative;
  config.query_pre_attn_scalar = 1;
  config.swiglu = false;
  (is_v1_1 ? config.geglu : config.relu) = true;
  config.untie_embeddings_and_output_weights = is_v1_1;
  config.scale_decoder_outputs = !is_v1_1;
  return config;
}

}  // namespace megalith::test
