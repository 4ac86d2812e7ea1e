// DeepSeek's configurations as published: what is read from them, what is written, and what is refused.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "comm/groups.h"
#include "models/families.h"
#include "nn/latent_attention.h"

namespace megalith {

extern const ModelFamily kDeepseekV2, kDeepseekV3;

namespace {

using nlohmann::json;

json deepseek_v2_lite() {
  return json::parse(R"({
    "architectures": ["DeepseekV2ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "aux_loss_alpha": 0.001, "bos_token_id": 100000, "eos_token_id": 100001, "first_k_dense_replace": 1,
    "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 10944,
    "kv_lora_rank": 512, "max_position_embeddings": 163840, "model_type": "deepseek_v2",
    "moe_intermediate_size": 1408, "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 64, "n_shared_experts": 2,
    "norm_topk_prob": false, "num_attention_heads": 16, "num_experts_per_tok": 6, "num_hidden_layers": 27,
    "num_key_value_heads": 16, "pretraining_tp": 1, "q_lora_rank": null, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
    "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707,
                     "original_max_position_embeddings": 4096, "type": "yarn"},
    "rope_theta": 10000, "routed_scaling_factor": 1.0, "scoring_func": "softmax", "seq_aux": true,
    "tie_word_embeddings": false, "topk_group": 1, "topk_method": "greedy", "torch_dtype": "bfloat16",
    "use_cache": true, "v_head_dim": 128, "vocab_size": 102400})");
}

json deepseek_v2() {
  json config = deepseek_v2_lite();
  config.update(json::parse(R"({
    "hidden_size": 5120, "intermediate_size": 12288, "moe_intermediate_size": 1536, "n_group": 8,
    "n_routed_experts": 160, "num_attention_heads": 128, "num_hidden_layers": 60, "num_key_value_heads": 128,
    "q_lora_rank": 1536, "routed_scaling_factor": 16.0, "topk_group": 3, "topk_method": "group_limited_greedy"})"));
  return config;
}

json deepseek_v3() {
  json config = deepseek_v2();
  config.update(json::parse(R"({
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "bos_token_id": 0, "eos_token_id": 1,
    "ep_size": 1, "first_k_dense_replace": 3, "hidden_size": 7168, "intermediate_size": 18432,
    "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": true,
    "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_nextn_predict_layers": 1,
    "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
                            "weight_block_size": [128, 128]},
    "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
                     "original_max_position_embeddings": 4096, "type": "yarn"},
    "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "topk_group": 4, "topk_method": "noaux_tc",
    "vocab_size": 129280})"));
  return config;
}

const ModelFamily& deepseek_family(const json& config) {
  return config.at("model_type") == "deepseek_v2" ? kDeepseekV2 : kDeepseekV3;
}
ModelConfig read_deepseek(const json& config) { return deepseek_family(config).from_hf(config); }

std::map<std::string, std::string> deepseek_text(ModelConfig config) {
  std::map<std::string, std::string> text;
  const OptionSet options(config);
  for (const auto& option : options.options()) text[option->name()] = option->text();
  return text;
}

double softmax_scale(const ModelConfig& config) {
  return config.softmax_factor() / std::sqrt(static_cast<double>(config.query_head_dim()));
}

TEST(Deepseek, PublishedConfigurationsAreRead) {
  const ModelConfig lite = read_deepseek(deepseek_v2_lite());
  EXPECT_EQ(lite.q_lora_rank, std::nullopt);
  EXPECT_EQ(lite.kv_lora_rank, 512);
  EXPECT_EQ(lite.query_head_dim(), 192);
  EXPECT_EQ(lite.value_head_dim(), 128);
  EXPECT_EQ(lite.ffn_size(), 10944);
  EXPECT_EQ(lite.expert_ffn_size(), 1408);
  EXPECT_EQ(lite.shared_expert_size(), 2816);
  EXPECT_FALSE(lite.has_experts_at(0));
  EXPECT_TRUE(lite.has_experts_at(1));
  EXPECT_TRUE(lite.has_experts_at(26));
  EXPECT_TRUE(lite.moe_router_pre_softmax);
  EXPECT_EQ(lite.moe_router_num_groups, std::nullopt);
  EXPECT_EQ(lite.moe_router_dtype, RouterPrecision::kFp32);
  EXPECT_EQ(lite.moe_aux_loss_coeff, 0);

  const ModelConfig v2 = read_deepseek(deepseek_v2());
  EXPECT_EQ(v2.q_lora_rank, 1536);
  EXPECT_EQ(v2.moe_router_num_groups, 8);
  EXPECT_EQ(v2.moe_router_group_topk, 3);
  EXPECT_EQ(v2.moe_router_group_score, GroupScore::kMax);
  EXPECT_EQ(v2.moe_router_topk_scaling_factor, 16);
  EXPECT_EQ(v2.moe_router_score_function, RouterScore::kSoftmax);
  EXPECT_FALSE(v2.moe_router_enable_expert_bias);

  const ModelConfig v3 = read_deepseek(deepseek_v3());
  EXPECT_EQ(v3.num_experts, 256);
  EXPECT_EQ(v3.moe_router_topk, 8);
  EXPECT_EQ(v3.shared_expert_size(), 2048);
  EXPECT_FALSE(v3.has_experts_at(2));
  EXPECT_TRUE(v3.has_experts_at(3));
  EXPECT_EQ(v3.moe_router_score_function, RouterScore::kSigmoid);
  EXPECT_FALSE(v3.moe_router_pre_softmax);
  EXPECT_TRUE(v3.moe_router_enable_expert_bias);
  EXPECT_EQ(v3.moe_router_group_score, GroupScore::kTopSum);
  EXPECT_EQ(v3.num_prediction_modules(), 0);
  EXPECT_EQ(v3.bos_token_id, 0);

  // The reference values of the three: (128 + 64)^-1/2 times YaRN's factor squared.
  EXPECT_NEAR(softmax_scale(lite), 0.1147213868, 1e-10);
  EXPECT_NEAR(softmax_scale(v2), 0.1147213868, 1e-10);
  EXPECT_NEAR(softmax_scale(v3), 0.1352337789, 1e-10);
  for (const ModelConfig& config : {lite, v2, v3}) {
    EXPECT_TRUE(check_model_config(config).empty());
    EXPECT_TRUE(config.has_yarn());
    EXPECT_EQ(config.qk_pos_emb_head_dim, 64);
    EXPECT_EQ(config.rotary_scaling_factor, 40);
    EXPECT_EQ(rotary_multiplier(config), 1);
  }
}

TEST(Deepseek, ParameterCountsAreTheModels) {
  const std::pair<json, int64_t> cases[] = {
      {deepseek_v2_lite(), 15'706'484'224}, {deepseek_v2(), 235'741'434'880}, {deepseek_v3(), 671'026'404'352}};
  for (const auto& [published, expected] : cases) {
    const Groups groups = Groups::single();
    LayerContext context;
    context.groups = &groups;
    context.device = at::kMeta;
    context.dtype = at::kBFloat16;
    const auto model = deepseek_family(published).build_whole(read_deepseek(published), context);
    int64_t count = 0;
    for (const Parameter* parameter : model->parameters()) {
      if (parameter->name().find("correction_bias") != std::string::npos) continue;
      count += parameter->placement().num_canonical_elements();
    }
    EXPECT_EQ(count, expected) << published.at("model_type");
  }
}

TEST(Deepseek, WhatIsWrittenReadsBackTheSame) {
  for (const json& original : {deepseek_v2_lite(), deepseek_v2(), deepseek_v3()}) {
    const ModelFamily& family = deepseek_family(original);
    const ModelConfig config = read_deepseek(original);
    EXPECT_EQ(&family_for(config), &family);
    const json written = family.to_hf(config, at::kBFloat16);
    EXPECT_EQ(deepseek_text(read_deepseek(written)), deepseek_text(config));
    EXPECT_FALSE(written.contains("quantization_config"));
    for (const auto& [key, value] : original.items()) {
      // Keys that say nothing of the architecture here, or say it in another form.
      if (key == "rope_scaling" || key == "ep_size" || key == "quantization_config" || key == "aux_loss_alpha" ||
          key == "seq_aux" || key == "num_nextn_predict_layers" || key == "mlp_bias" || key == "pretraining_tp") {
        continue;
      }
      EXPECT_EQ(written.value(key, json()), value) << key;
    }
    for (const auto& [key, value] : original.at("rope_scaling").items()) {
      EXPECT_EQ(written.at("rope_scaling").at(key == "type" ? "rope_type" : key), value) << key;
    }
  }
}

TEST(Deepseek, VersionFivesKeysSayTheSame) {
  json five = deepseek_v3();
  five["rope_parameters"] = five["rope_scaling"];
  five["rope_parameters"]["rope_type"] = "yarn";
  five["rope_parameters"]["rope_theta"] = 10000.0;
  five["rope_parameters"].erase("type");
  five.erase("rope_scaling");
  five.erase("rope_theta");
  five["dtype"] = "bfloat16";
  five.erase("torch_dtype");
  five["head_dim"] = 64;
  five["rope_interleave"] = true;
  EXPECT_EQ(deepseek_text(read_deepseek(five)), deepseek_text(read_deepseek(deepseek_v3())));
}

TEST(Deepseek, MissingKeysTakeTheClassDefaults) {
  json v2 = deepseek_v2();
  for (const char* key : {"q_lora_rank", "first_k_dense_replace", "n_shared_experts", "rope_scaling", "topk_method",
                          "routed_scaling_factor", "moe_intermediate_size"}) {
    v2.erase(key);
  }
  const ModelConfig config = read_deepseek(v2);
  EXPECT_EQ(config.q_lora_rank, 1536);
  EXPECT_TRUE(config.has_experts_at(0));
  EXPECT_EQ(config.expert_ffn_size(), 1407);
  EXPECT_EQ(config.shared_expert_size(), 2 * 1407);
  EXPECT_EQ(config.moe_router_topk_scaling_factor, 1);
  EXPECT_EQ(config.moe_router_num_groups, std::nullopt);  // greedy
  EXPECT_EQ(config.rope_type, RopeType::kRope);
  EXPECT_NEAR(softmax_scale(config), 1 / std::sqrt(192.0), 1e-15);
  EXPECT_FALSE(config.has_yarn());

  json v3 = deepseek_v3();
  for (const char* key : {"n_group", "topk_group", "first_k_dense_replace", "n_shared_experts"}) v3.erase(key);
  EXPECT_EQ(deepseek_text(read_deepseek(v3)), deepseek_text(read_deepseek(deepseek_v3())));
}

TEST(Deepseek, GroupsThatAreAllOpenChooseNothing) {
  json config = deepseek_v3();
  config["n_group"] = config["topk_group"] = 4;
  EXPECT_EQ(read_deepseek(config).moe_router_num_groups, std::nullopt);
  const json written = kDeepseekV3.to_hf(read_deepseek(config), at::kBFloat16);
  EXPECT_EQ(written.at("n_group"), 1);
  EXPECT_EQ(written.at("topk_group"), 1);
}

// transformers judges a group by its two best whatever num_experts_per_tok and topk_group are; Megatron-LM by as many
// as a group would give on average.
TEST(Deepseek, AGroupIsJudgedByItsTwoBestWhateverIsChosen) {
  EXPECT_EQ(read_deepseek(deepseek_v3()).moe_router_group_score, GroupScore::kTopSum);  // the published sizes: both
  json original = deepseek_v3();
  for (const int chosen : {2, 6}) {
    original["num_experts_per_tok"] = chosen;
    const ModelConfig config = read_deepseek(original);
    EXPECT_EQ(config.moe_router_group_score, GroupScore::kTwo);
    EXPECT_TRUE(check_model_config(config).empty());
    EXPECT_EQ(&family_for(config), &kDeepseekV3);
    const json written = kDeepseekV3.to_hf(config, at::kFloat);
    EXPECT_EQ(written.at("num_experts_per_tok"), chosen);
    EXPECT_EQ(written.at("topk_group"), 4);
    EXPECT_EQ(deepseek_text(read_deepseek(written)), deepseek_text(config));
  }
}

TEST(Deepseek, GroupsOfOneExpertHaveNoTwoBest) {
  json original = deepseek_v3();
  original["n_routed_experts"] = 8;
  original["num_experts_per_tok"] = 4;
  const std::vector<UserError> errors = check_model_config(read_deepseek(original));
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0].message(), "moe_router_group_score two with groups of 1 expert");
}

TEST(Deepseek, YarnWithoutItsScalesHasTheClasssMultiplier) {
  json config = deepseek_v3();
  config["rope_scaling"].erase("mscale");
  config["rope_scaling"].erase("mscale_all_dim");
  const ModelConfig read = read_deepseek(config);
  EXPECT_NEAR(rotary_multiplier(read), 1.3688879454, 1e-10);
  EXPECT_NEAR(softmax_scale(read), 1 / std::sqrt(192.0), 1e-15);
  EXPECT_EQ(deepseek_text(read_deepseek(kDeepseekV3.to_hf(read, at::kFloat))), deepseek_text(read));
}

TEST(Deepseek, ADenseModelIsOneWhoseLayersAreAllDense) {
  json original = deepseek_v3();
  original["first_k_dense_replace"] = 61;
  const ModelConfig config = read_deepseek(original);
  for (int64_t layer = 0; layer < 61; ++layer) EXPECT_FALSE(config.has_experts_at(layer));
  EXPECT_EQ(&family_for(config), &kDeepseekV3);
  const json written = kDeepseekV3.to_hf(config, at::kFloat);
  EXPECT_EQ(written.at("first_k_dense_replace"), 61);
  EXPECT_EQ(deepseek_text(read_deepseek(written)), deepseek_text(config));
}

// Latent heads have widths of their own: nothing asks for hidden_size / num_attention_heads.
TEST(Deepseek, HeadsNeedNotDivideTheHiddenSize) {
  for (json original : {deepseek_v2_lite(), deepseek_v2(), deepseek_v3()}) {
    original["hidden_size"] = 40;
    original["num_attention_heads"] = original["num_key_value_heads"] = 6;
    const ModelConfig config = read_deepseek(original);
    EXPECT_TRUE(check_model_config(config).empty());
    const Groups groups = Groups::single();
    const LatentAttention layer({.groups = &groups, .device = at::kMeta}, "a", config, {});
    std::map<std::string, std::vector<int64_t>> shapes;
    layer.for_each_parameter([&](Parameter& parameter) { shapes[parameter.name()] = parameter.value().sizes().vec(); });
    EXPECT_EQ(shapes.at("a.o_proj.weight"), (std::vector<int64_t>{40, 6 * 128}));
    const json written = deepseek_family(original).to_hf(config, at::kFloat);
    EXPECT_EQ(written.at("hidden_size"), 40);
    EXPECT_EQ(written.at("head_dim"), 64);  // the rotated channels, in this family
    EXPECT_EQ(deepseek_text(read_deepseek(written)), deepseek_text(config));
  }
}

TEST(Deepseek, PredictionModulesAreWritten) {
  ModelConfig config = read_deepseek(deepseek_v3());
  config.mtp_num_layers = 1;
  EXPECT_EQ(&family_for(config), &kDeepseekV3);
  EXPECT_EQ(kDeepseekV3.to_hf(config, at::kFloat).at("num_nextn_predict_layers"), 1);
}

TEST(Deepseek, RefusesWhatItCannotHonour) {
  struct Mistake {
    json config;
    std::string key;
    json value;
    std::string message;
  };
  const Mistake mistakes[] = {
      {deepseek_v3(), "attention_bias", true, "attention_bias"},
      {deepseek_v3(), "rope_interleave", false, "rope_interleave"},
      {deepseek_v3(), "num_key_value_heads", 8, "num_key_value_heads"},
      {deepseek_v3(), "norm_topk_prob", false, "norm_topk_prob"},
      {deepseek_v3(), "scoring_func", "softmax", "scoring_func"},
      {deepseek_v3(), "topk_method", "greedy", "topk_method"},
      {deepseek_v3(), "num_experts_per_tok", 1, "num_experts_per_tok is 1"},
      {deepseek_v3(), "topk_group", 9, "n_group is 8, topk_group 9"},
      {deepseek_v3(), "n_group", 7, "n_group is 7, topk_group 4 and n_routed_experts 256"},
      {deepseek_v3(), "n_group", 0, "n_group is 0"},
      {deepseek_v3(), "moe_layer_freq", 2, "moe_layer_freq"},
      {deepseek_v3(), "hidden_act", "gelu", "hidden_act"},
      {deepseek_v3(), "rope_scaling", {{"type", "linear"}, {"factor", 2}}, "'linear'"},
      {deepseek_v3(),
       "rope_scaling",
       {{"type", "llama3"},
        {"factor", 8},
        {"low_freq_factor", 1},
        {"high_freq_factor", 4},
        {"original_max_position_embeddings", 8192}},
       "'llama3'"},
      {deepseek_v3(), "num_experts_per_tok", nullptr, "num_experts_per_tok"},
      {deepseek_v3(), "n_shared_experts", -1, "n_shared_experts is -1, expected at least 0"},
      {deepseek_v2(), "topk_method", "noaux_tc", "topk_method is 'noaux_tc'"},
      {deepseek_v2(), "mlp_bias", true, "mlp_bias"},
  };
  for (const Mistake& mistake : mistakes) {
    json config = mistake.config;
    config[mistake.key] = mistake.value;
    std::string message = "accepted";
    try {
      read_deepseek(config);
    } catch (const UserError& error) {
      message = error.message();
    }
    EXPECT_NE(message.find(mistake.message), std::string::npos) << mistake.key << ": " << message;
  }
  json factor = deepseek_v3();
  factor["rope_scaling"]["attention_factor"] = 1.5;
  EXPECT_THROW(read_deepseek(factor), UserError);
}

}  // namespace
}  // namespace megalith
