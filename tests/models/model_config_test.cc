// Architecture options: sizes that follow from others, and what is refused.
#include "models/model_config.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "comm/groups.h"
#include "device/memory.h"
#include "models/families.h"
#include "models/layer_pattern.h"
#include "models/tiny_models.h"

namespace megalith {
namespace {

using namespace test;

void set(const OptionSet& options, std::string_view name, std::string_view text) {
  Option* option = options.find(name);
  ASSERT_NE(option, nullptr) << name;
  option->set(text, {.layer = OptionLayer::kCommandLine, .where = "command line"});
}

TEST(ModelOptions, MegatronFlagsAloneDescribeALlama) {
  ModelConfig config;
  const OptionSet options(config);
  for (const auto& [name, text] :
       std::vector<std::pair<std::string, std::string>>{{"num-layers", "2"},
                                                        {"hidden-size", "96"},
                                                        {"num-attention-heads", "4"},
                                                        {"group-query-attention", "true"},
                                                        {"num-query-groups", "2"},
                                                        {"max-position-embeddings", "64"},
                                                        {"position-embedding-type", "rope"},
                                                        {"rotary-base", "500000"},
                                                        {"swiglu", "true"},
                                                        {"normalization", "RMSNorm"},
                                                        {"disable-bias-linear", "true"},
                                                        {"untie-embeddings-and-output-weights", "true"},
                                                        {"attention-dropout", "0"},
                                                        {"hidden-dropout", "0"},
                                                        {"layernorm-epsilon", "1e-6"},
                                                        {"vocab-size", "100"}}) {
    set(options, name, text);
  }
  EXPECT_TRUE(check_model_config(config).empty());
  EXPECT_EQ(family_for(config).name, "llama");
  EXPECT_EQ(config.ffn_size(), 256);  // 8 * 96 / 3 = 256, a multiple of 64
  EXPECT_EQ(config.head_dim(), 24);
  EXPECT_EQ(config.num_kv_heads(), 2);
  EXPECT_EQ(config.norm_epsilon, 1e-6);
  EXPECT_EQ(config.padded_vocab_size(1), 128);
  EXPECT_EQ(config.padded_vocab_size(3), 384);
  set(options, "add-qkv-bias", "true");
  EXPECT_EQ(family_for(config).name, "qwen2");
  set(options, "position-embedding-type", "learned_absolute");
  EXPECT_EQ(family_for(config).name, "gpt");  // no Hugging Face class has RMSNorm and learned positions
  set(options, "use-rotary-position-embeddings", "true");
  EXPECT_EQ(family_for(config).name, "qwen2");
  EXPECT_TRUE(check_model_config(config).empty());
  set(options, "qk-layernorm", "true");
  EXPECT_EQ(family_for(config).name, "gpt");  // Qwen's classes have biases or norms of heads, not both
  set(options, "add-qkv-bias", "false");
  EXPECT_EQ(family_for(config).name, "qwen3");
  EXPECT_TRUE(check_model_config(config).empty());
}

TEST(ModelOptions, NormsOfHeadsMakeAnotherArchitecture) {
  const auto family_with_norms = [](ModelConfig config) {
    const std::string_view without = family_for(config).name;
    config.qk_layernorm = true;
    EXPECT_TRUE(check_model_config(config).empty()) << without;
    return fmt::format("{} {}", without, family_for(config).name);
  };
  ModelConfig llama = tiny_config(), mixtral = llama, gpt2;
  mixtral.num_experts = 4;
  gpt2.num_layers = 2;
  gpt2.hidden_size = 24;
  gpt2.num_attention_heads = 4;
  gpt2.max_position_embeddings = 64;
  gpt2.vocab_size = 37;
  EXPECT_EQ(family_with_norms(llama), "llama qwen3");
  EXPECT_EQ(family_with_norms(mixtral), "mixtral qwen3_moe");
  EXPECT_EQ(family_with_norms(gpt2), "gpt2 gpt");
}

TEST(ModelOptions, DefaultsAreMegatrons) {
  ModelConfig config;
  config.hidden_size = 1000;
  config.num_attention_heads = 10;
  EXPECT_EQ(config.ffn_size(), 4000);
  config.swiglu = true;
  EXPECT_EQ(config.ffn_size(), 2624);  // int(2666 / 64) * 64
  EXPECT_EQ(config.num_kv_heads(), 10);
  config.num_query_groups = 2;  // read only with group_query_attention
  EXPECT_EQ(config.num_kv_heads(), 10);
  EXPECT_EQ(config.normalization, Normalization::kLayerNorm);
  EXPECT_TRUE(config.has_linear_bias());
}

TEST(ModelRules, EveryMistakeIsNamedWithItsRemedy) {
  struct Mistake {
    std::function<void(ModelConfig&)> make;
    std::string message;
  };
  const Mistake mistakes[] = {
      {[](ModelConfig& c) { c.num_layers = 0; }, "num_layers is 0"},
      {[](ModelConfig& c) { c.max_position_embeddings = 0; }, "max_position_embeddings is 0"},
      {[](ModelConfig& c) {
         c.kv_channels.reset();
         c.hidden_size = 25;
       },
       "num_attention_heads 6 does not divide hidden_size 25"},
      {[](ModelConfig& c) { c.kv_channels = 5; }, "rotates pairs of channels, but a head has 5"},
      {[](ModelConfig& c) { c.num_query_groups = 4; }, "num_query_groups 4 does not divide num_attention_heads 6"},
      {[](ModelConfig& c) {
         c.use_rope_scaling = true;
         c.rope_scaling_high_freq_factor = 0.5;
       },
       "rope_scaling_high_freq_factor 0.5"},
      {[](ModelConfig& c) {
         c.attention_chunk_size = 4;
         c.causal = false;
       },
       "attention_chunk_size is for layers that rotate and are causal"},
      {[](ModelConfig& c) { c.attn_temperature_scale = 0.1; }, "no_rope_freq leaves none"},
      {[](ModelConfig& c) { c.qk_l2_norm = c.qk_layernorm = true; }, "qk_l2_norm is for ordinary heads"},
      {[](ModelConfig& c) {
         c.num_experts = 4;
         c.moe_apply_probs_on_input = true;
       },
       "moe_apply_probs_on_input with moe_router_topk 2"},
      {[](ModelConfig& c) {
         c.eos_token_ids = {2, 37};
       },
       "eos_token_ids has 37"},
      {[](ModelConfig& c) { c.squared_relu = true; }, "more than one of swiglu"},
      {[](ModelConfig& c) { c.multi_latent_attention = true; }, "group_query_attention exclude each other"},
      {[](ModelConfig& c) {
         c.group_query_attention = false;
         c.multi_latent_attention = c.add_qkv_bias = true;
       },
       "multi_latent_attention has no biases"},
      {[](ModelConfig& c) {
         c.group_query_attention = false;
         c.multi_latent_attention = true;
         c.qk_pos_emb_head_dim = 5;
       },
       "qk_pos_emb_head_dim 5 is odd"},
      {[](ModelConfig& c) {
         c.position_embedding_type = PositionEmbedding::kLearnedAbsolute;
         c.mtp_num_layers = 1;
       },
       "mtp_num_layers needs positions without a table"},
      {[](ModelConfig& c) { c.layer_types = {"conv"}; }, "layer_types has 1 entries, and num_layers is 2"},
      {[](ModelConfig& c) {
         c.layer_types = {"conv", "full_attention"};
         c.causal = false;
       },
       "layer_types conv with is_causal false"},
      {[](ModelConfig& c) { c.window_size = {5}; }, "window_size is 5, expected two numbers"},
      {[](ModelConfig& c) {
         c.window_size = {5, 2};
       },
       "window_size is 5,2, and is_causal lets no token see those behind it"},
      {[](ModelConfig& c) {
         c.window_size = {5, 0};
         c.causal = false;
       },
       "window_size is 5,0 with is_causal false"},
      {[](ModelConfig& c) {
         c.num_experts = 4;
         c.glu_linear_offset = 1;
       },
       "glu_linear_offset is given, and quick_geglu is off"},
      {[](ModelConfig& c) { c.activation_func_clamp_value = 7; },
       "activation_func_clamp_value is given, and quick_geglu is off"},
      {[](ModelConfig& c) { c.quick_geglu = true; }, "more than one of swiglu, geglu, quick_geglu"},
      {[](ModelConfig& c) {
         c.num_experts = 4;
         c.moe_router_topk = 5;
       },
       "moe_router_topk 5 is more than num_experts 4"},
      {[](ModelConfig& c) {
         c.num_experts = 4;
         c.moe_router_topk = 1;
       },
       "always gives it the weight 1"},
      {[](ModelConfig& c) {
         c.num_experts = 4;
         c.moe_router_enable_expert_bias = true;
       },
       "moe_router_enable_expert_bias is for sigmoid scores"},
      {[](ModelConfig& c) {
         c.num_experts = 4;
         c.moe_layer_freq = "[0,1,1]";
       },
       "is for 3 layers, and num_layers is 2"},
      {[](ModelConfig& c) {
         c.num_experts = 4;
         c.moe_layer_freq = "[0]*";
       },
       "is no layer pattern"},
      {[](ModelConfig& c) {
         c.num_experts = 6;
         c.moe_router_num_groups = 4;
         c.moe_router_group_topk = 2;
       },
       "moe_router_num_groups 4 does not divide num_experts 6"},
      {[](ModelConfig& c) {
         c.num_experts = 8;
         c.moe_router_num_groups = 4;
         c.moe_router_group_topk = 1;
         c.moe_router_topk = 3;
       },
       "is more than the 2 experts of 1 groups"},
      {[](ModelConfig& c) {
         c.num_experts = 4;
         c.moe_pad_expert_input_to_capacity = true;
       },
       "moe_pad_expert_input_to_capacity without a capacity"},
      {[](ModelConfig& c) {
         c.num_experts = 4;
         c.num_shared_experts = 1;
         c.moe_shared_expert_overlap = true;
       },
       "moe_shared_expert_overlap is for"},
      {[](ModelConfig& c) {
         c.position_embedding_type = PositionEmbedding::kNone;
         c.no_rope_freq = "2";
       },
       "no_rope_freq is given, and position_embedding_type is not rope"},
      {[](ModelConfig& c) { c.no_rope_freq = "[1]"; }, "no_rope_freq '[1]' is for 1 layers, and num_layers is 2"},
      {[](ModelConfig& c) { c.swiglu = c.geglu = true; }, "more than one of swiglu, geglu"},
      {[](ModelConfig& c) {
         c.use_rope_scaling = true;
         c.rotary_seq_len_interpolation_factor = 2;
       },
       "rotary_seq_len_interpolation_factor 2 stretches all wavelengths"},
      {[](ModelConfig& c) {
         c.qk_layernorm = c.apply_layernorm_1p = true;
         c.qk_layernorm_scope = HeadNormScope::kProjection;
       },
       "apply_layernorm_1p with qk_layernorm_scope projection"},
      {[](ModelConfig& c) { c.window_attn_skip_freq = "2"; }, "window_attn_skip_freq is given, and window_size"},
      {[](ModelConfig& c) { c.rotary_base_local = 100; }, "rotary_base_local is given, and window_size"},
      {[](ModelConfig& c) {
         c.window_size = {3, 0};
         c.window_attn_skip_freq = "[1,0,1]";
       },
       "window_attn_skip_freq '[1,0,1]' is for 3 layers, and num_layers is 2"},
      {[](ModelConfig& c) {
         c.window_size = {3, 0};
         c.window_attn_skip_freq = "[1,2]";
       },
       "window_attn_skip_freq '[1,2]' has the entry 2"},
  };
  EXPECT_TRUE(check_model_config(tiny_config()).empty());
  for (const Mistake& mistake : mistakes) {
    ModelConfig config = tiny_config();
    mistake.make(config);
    const std::vector<UserError> errors = check_model_config(config);
    ASSERT_EQ(errors.size(), 1u) << mistake.message;
    EXPECT_NE(errors[0].message().find(mistake.message), std::string::npos) << errors[0].message();
    EXPECT_FALSE(errors[0].remedy().empty()) << mistake.message;
  }
  // All at once, for a configuration that says nothing.
  EXPECT_GE(check_model_config(ModelConfig()).size(), 4u);
}

TEST(ModelRules, LayoutsMustDivideHeadsGroupsAndFfn) {
  ModelConfig config = tiny_config();  // 6 heads, 2 groups, ffn 20
  EXPECT_TRUE(check_model_layout(config, {.tp = 2}).empty());
  EXPECT_EQ(check_model_layout(config, {.tp = 3}).size(), 2u);  // groups and ffn
  EXPECT_EQ(check_model_layout(config, {.tp = 4}).size(), 2u);  // heads and groups
}

TEST(ModelRules, ExpertsMustDivideOverTheirRanks) {
  ModelConfig config = tiny_config();
  EXPECT_EQ(check_model_layout(config, {.ep = 2}).size(), 1u);  // it has none
  config.num_experts = 6;
  config.moe_ffn_hidden_size = 8;
  EXPECT_TRUE(check_model_layout(config, {.tp = 2, .ep = 3, .etp = 4}).empty());
  EXPECT_EQ(check_model_layout(config, {.ep = 4, .etp = 3}).size(), 2u);
  config.moe_shared_expert_intermediate_size = 9;
  EXPECT_EQ(check_model_layout(config, {.tp = 2}).size(), 1u);
}

TEST(ModelRules, LayerPatternsAreReadAsPythonWould) {
  using List = std::vector<int64_t>;
  EXPECT_EQ(parse_moe_layer_freq("1", 3), (List{1, 1, 1}));
  EXPECT_EQ(parse_moe_layer_freq("2", 5), (List{1, 0, 1, 0, 1}));
  EXPECT_EQ(parse_moe_layer_freq("[0, 1, 1]", 3), (List{0, 1, 1}));
  EXPECT_EQ(parse_moe_layer_freq("([0]*2+[1]*3)", 5), (List{0, 0, 1, 1, 1}));
  EXPECT_EQ(parse_moe_layer_freq("[0,1]*2+[1]", 5), (List{0, 1, 0, 1, 1}));
  EXPECT_EQ(parse_moe_layer_freq("2*([1]+[0])", 4), (List{1, 0, 1, 0}));
  EXPECT_EQ(parse_moe_layer_freq(moe_layer_freq_text(1, 4), 4), (List{0, 1, 1, 1}));
  EXPECT_EQ(normalised_moe_layer_freq("[0,1,1]", 3), normalised_moe_layer_freq("([0]*1+[1]*2)", 3));
  EXPECT_EQ(normalised_moe_layer_freq("[1]*3", 3), "1");
  EXPECT_EQ(normalised_moe_layer_freq("2", 3), "[1,0,1]");
  for (const char* text : {"", "0", "-1", "[2,1]", "[1]*[1]", "[1", "1]", "[1]*99999999999999999999", "[1]*99999999*2",
                           "((((((((((((((((((((((([1])))))))))))))))))))))))", "x", "1+[0]"}) {
    EXPECT_THROW(parse_moe_layer_freq(text, 2), UserError) << text;
  }
}

TEST(ModelRules, LayersWithoutAWindowOrARotationAreEveryNthOrThoseOfAList) {
  using List = std::vector<int64_t>;
  EXPECT_EQ(parse_window_attn_skip_freq("", 3), (List{1, 1, 1}));
  EXPECT_EQ(parse_window_attn_skip_freq("2", 5), (List{1, 0, 1, 0, 1}));
  EXPECT_EQ(parse_window_attn_skip_freq("3", 7), (List{1, 1, 0, 1, 1, 0, 1}));
  EXPECT_EQ(parse_window_attn_skip_freq("1", 2), (List{0, 0}));
  EXPECT_EQ(parse_window_attn_skip_freq("([1]*2+[0])*2", 6), (List{1, 1, 0, 1, 1, 0}));
  EXPECT_EQ(window_attn_skip_freq_text({1, 0, 1}), "[1,0,1]");
  EXPECT_EQ(parse_no_rope_freq("4", 9), (List{0, 0, 0, 1, 0, 0, 0, 1, 0}));
  EXPECT_EQ(parse_no_rope_freq("", 2), (List{0, 0}));
  EXPECT_EQ(no_rope_freq_text({0, 1}), "[0,1]");
  EXPECT_EQ(no_rope_freq_text({0, 0}), "");
  EXPECT_EQ(window_attn_skip_freq_text({1, 1}), "");
  EXPECT_THROW(parse_window_attn_skip_freq("0", 2), UserError);
  ModelConfig config = tiny_config();
  EXPECT_EQ(config.layers_with_window(), (List{0, 0}));
  config.window_size = {3, 0};
  EXPECT_EQ(config.layers_with_window(), (List{1, 1}));
  config.window_attn_skip_freq = "2";
  EXPECT_EQ(config.layers_with_window(), (List{1, 0}));
}

// Any value that differs from the option's default.
bool change(Option& option) {
  const std::string before = option.text();
  for (const char* text : {"true", "false", "2", "4", "0.5", "16,16", "null"}) {
    try {
      option.set(text, {});
    } catch (const UserError&) {
    }
    if (option.text() != before && !option.is_off()) return true;
  }
  return false;
}

TEST(ModelRules, WhatAModelDoesNotReadIsNeverPassedOverInSilence) {
  int num_refused = 0;
  for (const ModelType type :
       {ModelType::kGpt, ModelType::kT5, ModelType::kBert, ModelType::kBiencoder, ModelType::kDiffusion,
        ModelType::kClassifier}) {
    const std::string is = fmt::format("model_type {}", kModelTypeWords[static_cast<size_t>(type)]);
    ModelConfig declared;
    const OptionSet rows(declared);
    for (const auto& row : rows.options()) {
      if (row->traits().read_by.contains(type)) continue;
      ModelConfig config;
      config.model_type = type;
      const OptionSet options(config);
      Option& option = *options.find(row->name());
      if (!change(option)) continue;
      const std::string* always = option.text_always(type);
      if (always != nullptr && option.text() == *always) continue;
      const std::vector<UserError> errors = check_model_config(config);
      const bool is_told = std::ranges::any_of(
          errors, [&](const UserError& error) { return error.message().starts_with(option.name() + " is "); });
      EXPECT_TRUE(is_told) << is << ", " << option.name() << " " << option.text();
      ++num_refused;
    }
  }
  EXPECT_GT(num_refused, 150);
}

TEST(ModelCost, IsMegatronsFormulaWithUnhalvedAttention) {
  // 12 B s L h^2 [R (1 + g/n + s/h) + 1.5 f/h + V / (2 L h)] for forward and backward, R = n d / h.
  const Groups groups = Groups::single();
  const ModelConfig config = tiny_config();
  const int64_t b = 3, s = 10;
  const auto model = build_model(config, tiny_context(groups));
  const double h = 24, layers = 2, r = 36.0 / 24, v = static_cast<double>(config.padded_vocab_size(1));
  const double expected =
      12 * b * s * layers * h * h * (r * (1 + 2.0 / 6 + s / h) + 1.5 * 20 / h + v / (2 * layers * h));
  EXPECT_NEAR(3 * model->forward_flops({.b = b, .s = s}), expected, 1e-9 * expected);
}

}  // namespace
}  // namespace megalith
