// config.json of Qwen3-MoE, OLMo 2 and 3, GLM-4.5, gpt-oss and Llama 4 as published: what is read, what is written,
// what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "models/families.h"
#include "models/layer_pattern.h"

namespace megalith {
namespace {

using nlohmann::json;

// As Qwen/Qwen3-30B-A3B has it.
json qwen3_moe_file() {
  return json::parse(R"({
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 151936, "hidden_size": 2048,
    "intermediate_size": 6144, "moe_intermediate_size": 768, "num_hidden_layers": 48, "num_attention_heads": 32,
    "num_key_value_heads": 4, "head_dim": 128, "hidden_act": "silu", "max_position_embeddings": 40960,
    "max_window_layers": 48, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000.0,
    "sliding_window": null, "use_sliding_window": false, "tie_word_embeddings": false, "attention_bias": false,
    "attention_dropout": 0.0, "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": true,
    "num_experts": 128, "num_experts_per_tok": 8, "output_router_logits": false, "router_aux_loss_coef": 0.001,
    "bos_token_id": 151643, "eos_token_id": 151645, "initializer_range": 0.02, "torch_dtype": "bfloat16",
    "use_cache": true})");
}

// As allenai/OLMo-2-0325-32B has it.
json olmo2_file() {
  return json::parse(R"({
    "architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2", "vocab_size": 100352, "hidden_size": 5120,
    "intermediate_size": 27648, "num_hidden_layers": 64, "num_attention_heads": 40, "num_key_value_heads": 8,
    "hidden_act": "silu", "max_position_embeddings": 4096, "rms_norm_eps": 1e-06, "rope_scaling": null,
    "rope_theta": 500000, "tie_word_embeddings": false, "attention_bias": false, "attention_dropout": 0.0,
    "eos_token_id": 100257, "pad_token_id": 100277, "initializer_range": 0.02, "torch_dtype": "float32",
    "use_cache": true})");
}

// As allenai/Olmo-3-1025-7B has it.
json olmo3_file() {
  json config = olmo2_file();
  config.update(json::parse(R"({
    "architectures": ["Olmo3ForCausalLM"], "model_type": "olmo3", "vocab_size": 100278, "hidden_size": 4096,
    "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
    "max_position_embeddings": 65536, "sliding_window": 4096,
    "rope_scaling": {"attention_factor": 1.2079441541679836, "beta_fast": 32.0, "beta_slow": 1.0, "factor": 8.0,
                     "original_max_position_embeddings": 8192, "rope_type": "yarn"}})"));
  json types = json::array();
  for (int layer = 0; layer < 32; ++layer) types.push_back(layer % 4 == 3 ? "full_attention" : "sliding_attention");
  config["layer_types"] = types;
  return config;
}

// As zai-org/GLM-4.5 has it.
json glm_file() {
  return json::parse(R"({
    "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "vocab_size": 151552, "hidden_size": 5120,
    "intermediate_size": 12288, "moe_intermediate_size": 1536, "num_hidden_layers": 92, "num_attention_heads": 96,
    "num_key_value_heads": 8, "head_dim": 128, "hidden_act": "silu", "max_position_embeddings": 131072,
    "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 1000000,
    "attention_bias": true, "use_qk_norm": true, "attention_dropout": 0.0, "first_k_dense_replace": 3,
    "n_routed_experts": 160, "n_shared_experts": 1, "num_experts_per_tok": 8, "n_group": 1, "topk_group": 1,
    "norm_topk_prob": true, "routed_scaling_factor": 2.5, "num_nextn_predict_layers": 1, "tie_word_embeddings": false,
    "eos_token_id": [151329, 151336, 151338], "pad_token_id": 151329, "initializer_range": 0.02,
    "torch_dtype": "bfloat16", "use_cache": true})");
}

// As openai/gpt-oss-20b has it, apart from its quantization_config.
json gpt_oss_file() {
  json config = json::parse(R"({
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "vocab_size": 201088, "hidden_size": 2880,
    "intermediate_size": 2880, "num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8,
    "head_dim": 64, "hidden_act": "silu", "max_position_embeddings": 131072, "initial_context_length": 4096,
    "rms_norm_eps": 1e-05, "rope_theta": 150000, "sliding_window": 128, "swiglu_limit": 7.0,
    "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
                     "rope_type": "yarn", "truncate": false},
    "tie_word_embeddings": false, "attention_bias": true, "attention_dropout": 0.0, "num_local_experts": 32,
    "num_experts_per_tok": 4, "experts_per_token": 4, "output_router_logits": false, "router_aux_loss_coef": 0.9,
    "eos_token_id": 200002, "pad_token_id": 199999, "initializer_range": 0.02, "use_cache": true})");
  json types = json::array();
  for (int layer = 0; layer < 24; ++layer) types.push_back(layer % 2 == 1 ? "full_attention" : "sliding_attention");
  config["layer_types"] = types;
  return config;
}

// As the text_config of meta-llama/Llama-4-Scout-17B-16E has it, with every key in its place that the class derives.
json llama4_file() {
  json config = json::parse(R"({
    "architectures": ["Llama4ForCausalLM"], "model_type": "llama4_text", "attention_bias": false,
    "attention_chunk_size": 8192, "attention_dropout": 0.0, "attn_scale": 0.1, "attn_temperature_tuning": true,
    "bos_token_id": 200000, "eos_token_id": [200001, 200007, 200008], "floor_scale": 8192, "head_dim": 128,
    "hidden_act": "silu", "hidden_size": 5120, "initializer_range": 0.02, "interleave_moe_layer_step": 1,
    "intermediate_size": 8192, "intermediate_size_mlp": 16384, "max_position_embeddings": 10485760,
    "num_attention_heads": 40, "num_experts_per_tok": 1, "num_hidden_layers": 48, "num_key_value_heads": 8,
    "num_local_experts": 16, "output_router_logits": false, "pad_token_id": 200018, "rms_norm_eps": 1e-05,
    "rope_scaling": {"factor": 16.0, "high_freq_factor": 1.0, "low_freq_factor": 1.0,
                     "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    "rope_theta": 500000.0, "router_aux_loss_coef": 0.001, "router_jitter_noise": 0.0, "tie_word_embeddings": false,
    "torch_dtype": "bfloat16", "use_cache": true, "use_qk_norm": true, "vocab_size": 202048})");
  for (int layer = 0; layer < 48; ++layer) {
    config["moe_layers"].push_back(layer);
    config["no_rope_layers"].push_back(layer % 4 == 3 ? 0 : 1);
    config["layer_types"].push_back(layer % 4 == 3 ? "full_attention" : "chunked_attention");
  }
  return config;
}

// As LiquidAI/LFM2-8B-A1B has it.
json lfm2_moe_file() {
  json config = json::parse(R"({
    "architectures": ["Lfm2MoeForCausalLM"], "model_type": "lfm2_moe", "vocab_size": 65536, "hidden_size": 2048,
    "intermediate_size": 7168, "moe_intermediate_size": 1792, "num_hidden_layers": 24, "num_attention_heads": 32,
    "num_key_value_heads": 8, "max_position_embeddings": 128000, "norm_eps": 1e-05, "rope_theta": 1000000.0,
    "rope_scaling": null, "conv_L_cache": 3, "conv_bias": false, "num_dense_layers": 2, "num_experts": 32,
    "num_experts_per_tok": 4, "norm_topk_prob": true, "routed_scaling_factor": 1.0, "use_expert_bias": true,
    "bos_token_id": 1, "eos_token_id": 7, "pad_token_id": 0, "initializer_range": 0.02, "torch_dtype": "bfloat16",
    "use_cache": true})");
  for (int layer = 0; layer < 24; ++layer) {
    const bool attends = layer == 21 || (layer % 4 == 2 && layer < 20);
    config["layer_types"].push_back(attends ? "full_attention" : "conv");
  }
  return config;
}

// Keys of LiquidAI/LFM2-1.2B as it was first published.
json lfm2_file() {
  return json::parse(R"({
    "architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2", "vocab_size": 65536, "hidden_size": 2048,
    "block_ff_dim": 12288, "block_auto_adjust_ff_dim": true, "block_ffn_dim_multiplier": 1.0, "block_multiple_of": 256,
    "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "norm_eps": 1e-05,
    "theta": 1000000.0, "full_attn_idxs": [2, 5, 8, 10, 12, 14], "conv_L_cache": 3, "conv_bias": false,
    "tie_embedding": true, "bos_token_id": 1, "eos_token_id": 7})");
}

const ModelFamily& family_of_file(const json& file) {
  const auto families = model_families();
  return **std::ranges::find_if(families,
                                [&](const ModelFamily* family) { return family->hf_model_type == file["model_type"]; });
}

ModelConfig config_of_file(const json& file) { return family_of_file(file).from_hf(file); }

std::map<std::string, std::string> text_of_file(const json& file) {
  ModelConfig config = config_of_file(file);
  std::map<std::string, std::string> text;
  const OptionSet options(config);
  for (const auto& option : options.options()) text[option->name()] = option->text();
  return text;
}

std::string refusal_of_file(const json& file) {
  try {
    std::vector<UserError> errors = check_model_config(config_of_file(file));
    return errors.empty() ? "" : errors.front().message();
  } catch (const UserError& error) {
    return error.message();
  }
}

TEST(HfFamilies, WhatIsWrittenReadsBackTheSame) {
  for (const json& original :
       {qwen3_moe_file(), olmo2_file(), olmo3_file(), glm_file(), gpt_oss_file(), llama4_file(), lfm2_moe_file()}) {
    const ModelFamily& family = family_of_file(original);
    ModelConfig config = config_of_file(original);
    EXPECT_EQ(refusal_of_file(original), "");
    EXPECT_EQ(family_for(config).name, family.name);
    json written = family.to_hf(config, at::kBFloat16);
    EXPECT_EQ(text_of_file(written), text_of_file(original)) << family.name;
    for (const auto& [key, value] : original.items()) {
      // Keys that say nothing of the architecture here, or that no file needs.
      if (key == "torch_dtype" || key == "pad_token_id" || key == "max_window_layers" ||
          key == "num_nextn_predict_layers" || key == "router_aux_loss_coef" || key == "initial_context_length") {
        continue;
      }
      if (value.is_object()) {
        for (const auto& [inner, text] : value.items()) EXPECT_EQ(written.at(key).at(inner), text) << inner;
      } else {
        EXPECT_EQ(written.value(key, json()), value) << family.name << ": " << key;
      }
    }
    // Version 5 has the rotary keys in one object.
    json five = original;
    json rope = original["rope_scaling"].is_null() ? json{{"rope_type", "default"}} : original["rope_scaling"];
    rope["rope_theta"] = original["rope_theta"];
    for (const char* key : {"rope_scaling", "rope_theta"}) five.erase(key);
    if (original.contains("partial_rotary_factor")) {
      rope["partial_rotary_factor"] = original["partial_rotary_factor"];
      five.erase("partial_rotary_factor");
    }
    five["rope_parameters"] = rope;
    EXPECT_EQ(text_of_file(five), text_of_file(original)) << family.name;
  }
}

TEST(HfFamilies, Qwen3MoeSaysWhichLayersHaveExperts) {
  json file = qwen3_moe_file();
  const ModelConfig published = config_of_file(file);
  EXPECT_EQ(published.moe_layer_freq, "1");
  EXPECT_TRUE(published.qk_layernorm);
  EXPECT_FALSE(published.moe_router_pre_softmax);
  EXPECT_EQ(published.expert_ffn_size(), 768);
  EXPECT_EQ(published.moe_aux_loss_coeff, 0);  // the class adds the loss only with output_router_logits
  file["num_hidden_layers"] = 7;
  file["decoder_sparse_step"] = 2;
  file["mlp_only_layers"] = {3, 100};
  file["norm_topk_prob"] = false;
  file["output_router_logits"] = true;
  const ModelConfig sparse = config_of_file(file);
  EXPECT_EQ(parse_moe_layer_freq(sparse.moe_layer_freq, 7), (std::vector<int64_t>{0, 1, 0, 0, 0, 1, 0}));
  EXPECT_TRUE(sparse.moe_router_pre_softmax);
  EXPECT_EQ(sparse.moe_aux_loss_coeff, 0.001);
  const json written = family_of_file(file).to_hf(sparse, at::kFloat);
  EXPECT_EQ(written.at("mlp_only_layers"), json({0, 2, 3, 4, 6}));
  EXPECT_EQ(config_of_file(written).moe_layer_freq, sparse.moe_layer_freq);
  file["use_sliding_window"] = true;
  file["sliding_window"] = 64;
  EXPECT_EQ(config_of_file(file).attention_window(), 64);
  EXPECT_EQ(config_of_file(family_of_file(file).to_hf(config_of_file(file), at::kFloat)).attention_window(), 64);
}

TEST(HfFamilies, OlmoHasItsNormsBehindTheBlocks) {
  for (const json& file : {olmo2_file(), olmo3_file()}) {
    const ModelConfig config = config_of_file(file);
    EXPECT_EQ(config.norm_placement, NormPlacement::kPost);
    EXPECT_TRUE(config.qk_layernorm);
    EXPECT_EQ(config.qk_layernorm_scope, HeadNormScope::kProjection);
    // transformers takes 1 where no padding is named, and gives its embedding no gradient.
    EXPECT_TRUE(family_of_file(file).to_hf(config, at::kFloat).at("pad_token_id").is_null());
  }
}

TEST(HfFamilies, Olmo3StretchesOnlyTheLayersWithoutAWindow) {
  json file = olmo3_file();
  const ModelConfig config = config_of_file(file);
  EXPECT_EQ(config.attention_window(), 4096);
  EXPECT_EQ(config.layers_with_window(), parse_window_attn_skip_freq("4", 32));
  EXPECT_EQ(config.rope_scaling_type, RopeScalingType::kYarn);
  EXPECT_EQ(config.rotary_base_local, 500000);
  EXPECT_EQ(config.rope_scaling_multiplier(), 1.2079441541679836);
  file.erase("layer_types");  // the class takes the same
  EXPECT_EQ(text_of_file(file), text_of_file(olmo3_file()));
  file["rope_scaling"].erase("attention_factor");
  EXPECT_EQ(config_of_file(file).rope_scaling_multiplier(), 1.2079441541679836);
  file["rope_scaling"].update({{"mscale", 1.0}, {"mscale_all_dim", 0.5}});
  EXPECT_NEAR(config_of_file(file).rope_scaling_multiplier(), 1.2079441541679836 / 1.1039720770839918, 1e-15);
  file["rope_scaling"] = nullptr;
  EXPECT_EQ(config_of_file(file).rotary_base_local, std::nullopt);
}

TEST(HfFamilies, GlmRotatesAPartOfEachHeadAndHasOneGroupOfExperts) {
  json file = glm_file();
  const ModelConfig config = config_of_file(file);
  EXPECT_EQ(config.rotated_channels(config.head_dim()), 64);
  EXPECT_TRUE(config.add_qkv_bias);
  EXPECT_TRUE(config.qk_layernorm);
  EXPECT_EQ(config.moe_layer_freq, "([0]*3+[1]*89)");
  EXPECT_EQ(config.shared_expert_size(), 1536);
  EXPECT_EQ(config.moe_router_topk_scaling_factor, 2.5);
  EXPECT_TRUE(config.moe_router_enable_expert_bias);
  EXPECT_EQ(config.num_prediction_modules(), 0);  // asked for by a configuration
  for (const char* key : {"partial_rotary_factor", "use_qk_norm", "attention_bias", "first_k_dense_replace",
                          "n_routed_experts", "moe_intermediate_size", "routed_scaling_factor", "rms_norm_eps"}) {
    file.erase(key);
  }
  const ModelConfig defaults = config_of_file(file);
  EXPECT_EQ(defaults.rotary_percent, 0.5);
  EXPECT_FALSE(defaults.qk_layernorm || defaults.add_qkv_bias);
  EXPECT_EQ(defaults.moe_layer_freq, "([0]*1+[1]*91)");
  EXPECT_EQ(defaults.num_experts, 128);
  EXPECT_EQ(defaults.expert_ffn_size(), 1408);
  EXPECT_EQ(defaults.moe_router_topk_scaling_factor, 1);
  EXPECT_EQ(defaults.norm_epsilon, 1e-5);
  ModelConfig with_module = config;
  with_module.mtp_num_layers = 1;
  EXPECT_EQ(family_for(with_module).name, "glm4_moe");
  EXPECT_EQ(make_hf_config(family_for(with_module), with_module, at::kBFloat16).at("num_nextn_predict_layers"), 1);
}

TEST(HfFamilies, GptOssHasBiasesSinksAndLimitedGates) {
  json file = gpt_oss_file();
  const ModelConfig config = config_of_file(file);
  EXPECT_TRUE(config.quick_geglu && config.has_linear_bias());
  EXPECT_EQ(config.glu_linear_offset, 1);
  EXPECT_EQ(config.activation_func_clamp_value, 7);
  EXPECT_EQ(config.softmax_type, SoftmaxType::kLearnable);
  EXPECT_EQ(config.attention_window(), 128);
  EXPECT_EQ(config.layers_with_window(), parse_window_attn_skip_freq("2", 24));
  EXPECT_FALSE(config.rope_scaling_truncate);
  EXPECT_NEAR(config.rope_scaling_multiplier(), 0.1 * std::log(32.0) + 1, 1e-15);
  EXPECT_EQ(config.moe_aux_loss_coeff, 0);  // the class adds the loss only with output_router_logits
  file["quantization_config"] = {{"modules_to_not_convert", {"lm_head"}}, {"quant_method", "mxfp4"}};
  EXPECT_EQ(text_of_file(file), text_of_file(gpt_oss_file()));
  // Keys that the class takes as published where they are missing.
  for (const char* key : {"rope_theta", "rope_scaling", "head_dim", "num_key_value_heads", "sliding_window",
                          "layer_types", "swiglu_limit", "attention_bias", "num_experts_per_tok", "rms_norm_eps"}) {
    file.erase(key);
  }
  EXPECT_EQ(text_of_file(file), text_of_file(gpt_oss_file()));
  file["rope_scaling"] = nullptr;
  EXPECT_FALSE(config_of_file(file).use_rope_scaling);
}

TEST(HfFamilies, Lfm2ComputesTheWidthOfItsMlps) {
  const ModelConfig config = config_of_file(lfm2_file());
  EXPECT_EQ(config.ffn_size(), 8192);
  EXPECT_EQ(config.num_convolutions(), 10);
  EXPECT_FALSE(config.has_convolution_at(14));
  EXPECT_FALSE(config.untie_embeddings_and_output_weights);
  json file = lfm2_file();
  file["block_ffn_dim_multiplier"] = 1.1;  // 9011.2
  EXPECT_EQ(config_of_file(file).ffn_size(), 9216);
  file["block_auto_adjust_ff_dim"] = false;
  EXPECT_EQ(config_of_file(file).ffn_size(), 12288);
  const json written = family_of_file(file).to_hf(config, at::kBFloat16);
  EXPECT_EQ(text_of_file(written), text_of_file(lfm2_file()));
}

TEST(HfFamilies, WhatCannotBeHonouredIsNamed) {
  struct Case {
    json base;
    std::string key;
    json value;
    std::string message;
  };
  const Case cases[] = {
      {qwen3_moe_file(), "attention_bias", true, "attention_bias is true"},
      {qwen3_moe_file(), "decoder_sparse_step", 0, "at least 1"},
      {qwen3_moe_file(), "num_experts", 0, "at least 1"},
      {qwen3_moe_file(), "num_experts_per_tok", 129, "moe_router_topk 129"},
      {qwen3_moe_file(), "mlp_only_layers", "all", "mlp_only_layers"},
      {olmo2_file(), "attention_bias", true, "attention_bias is true"},
      {olmo2_file(), "rope_scaling", {{"rope_type", "yarn"}, {"factor", 4}}, "'yarn'"},
      {olmo3_file(), "rope_scaling", {{"rope_type", "yarn"}}, "factor"},
      {olmo3_file(), "layer_types", {"full_attention"}, "layer_types has 1 entries"},
      {gpt_oss_file(), "attention_bias", false, "attention_bias is false"},
      {gpt_oss_file(), "swiglu_limit", 6.0, "swiglu_limit is 6.0"},
      {gpt_oss_file(), "num_local_experts", 0, "at least 1"},
      {gpt_oss_file(), "quantization_config", {{"quant_method", "awq"}}, "the weights are quantised (awq)"},
      {olmo2_file(), "quantization_config", {{"quant_method", "mxfp4"}}, "the weights are quantised (mxfp4)"},
      {glm_file(), "n_group", 4, "n_group is 4 and topk_group 1"},
      {glm_file(), "norm_topk_prob", false, "norm_topk_prob is false"},
      {glm_file(), "num_experts_per_tok", 1, "num_experts_per_tok is 1"},
      {lfm2_file(), "layer_types", {"conv"}, "layer_types has 1 entries"},
      {lfm2_file(), "layer_types", {"sliding_attention"}, "layer_types has \"sliding_attention\""},
      {lfm2_moe_file(), "norm_topk_prob", false, "norm_topk_prob is false"},
      {glm_file(), "partial_rotary_factor", 0.0, "expected above 0 and at most 1"},
      {glm_file(), "partial_rotary_factor", 1.5, "partial_rotary_factor is 1.5"},
      {glm_file(), "partial_rotary_factor", 0.0078125, "rotary_percent"},  // one channel, and pairs are rotated
  };
  for (const Case& tested : cases) {
    json file = tested.base;
    file[tested.key] = tested.value;
    const std::string message = refusal_of_file(file);
    EXPECT_NE(message.find(tested.message), std::string::npos) << tested.key << ": " << message;
  }
}

TEST(HfFamilies, Llama4SaysWhichLayersRotateAndWhichHaveExperts) {
  json file = llama4_file();
  const ModelConfig scout = config_of_file(file);
  EXPECT_EQ(scout.layers_without_rotation(), parse_no_rope_freq("4", 48));
  EXPECT_EQ(scout.attention_chunk_size, 8192);
  EXPECT_TRUE(scout.rotary_interleaved && scout.qk_l2_norm && scout.moe_apply_probs_on_input);
  EXPECT_EQ(scout.moe_layer_freq, "1");
  EXPECT_EQ(scout.expert_ffn_size(), 8192);
  EXPECT_EQ(scout.shared_expert_size(), 8192);
  EXPECT_EQ(scout.ffn_size(), 16384);
  EXPECT_EQ(scout.moe_aux_loss_coeff, 0);  // the class adds the loss only with output_router_logits
  // Keys that the class takes as published where they are missing.
  for (const char* key : {"rope_theta", "head_dim", "num_key_value_heads", "attention_chunk_size", "attn_scale",
                          "attn_temperature_tuning", "floor_scale", "interleave_moe_layer_step", "moe_layers",
                          "no_rope_layers", "layer_types", "num_local_experts", "num_experts_per_tok", "rms_norm_eps",
                          "use_qk_norm", "intermediate_size_mlp", "tie_word_embeddings"}) {
    file.erase(key);
  }
  EXPECT_EQ(text_of_file(file), text_of_file(llama4_file()));
  // As older files say it.
  file["no_rope_layers"] = json::array();
  file["attn_temperature_tuning"] = 4;
  EXPECT_EQ(text_of_file(file), text_of_file(llama4_file()));
  // Maverick: experts in every other layer, no norms of heads, no stretched wavelengths.
  file.update({{"interleave_moe_layer_step", 2}, {"use_qk_norm", false}, {"rope_scaling", nullptr}});
  const ModelConfig maverick = config_of_file(file);
  EXPECT_EQ(normalised_moe_layer_freq(maverick.moe_layer_freq, 48), normalised_moe_layer_freq("([0,1]*24)", 48));
  EXPECT_FALSE(maverick.qk_l2_norm || maverick.use_rope_scaling);
  EXPECT_EQ(family_for(maverick).name, "llama4");
}

TEST(HfFamilies, Llama4IsRefusedWhereItWouldBeAnotherModel) {
  const auto refused = [](const char* key, const json& value) {
    json file = llama4_file();
    file[key] = value;
    return refusal_of_file(file);
  };
  EXPECT_EQ(refused("num_experts_per_tok", 2), "config.json: num_experts_per_tok is 2, and only 1 can be honoured");
  EXPECT_EQ(refused("attention_bias", true), "config.json: attention_bias is true, and only false can be honoured");
  EXPECT_EQ(refused("router_jitter_noise", 0.5),
            "config.json: router_jitter_noise is 0.5, and only 0.0 can be honoured");
  EXPECT_EQ(refused("moe_layers", {0, 48}), "config.json: moe_layers has 48, and there are 48 layers");
  json stepless = llama4_file();
  stepless.erase("moe_layers");
  stepless["interleave_moe_layer_step"] = 0;
  EXPECT_EQ(refusal_of_file(stepless), "config.json: interleave_moe_layer_step is 0, expected at least 1");
  json types = llama4_file()["layer_types"];
  std::swap(types[2], types[3]);
  EXPECT_EQ(refused("layer_types", types),
            "config.json: layer_types has chunks in other layers than those that rotate");
}

}  // namespace
}  // namespace megalith
