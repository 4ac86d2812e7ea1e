// Architecture options: sizes that follow from others, and what is refused.
#include "models/model_config.h"

#include <gtest/gtest.h>

#include "comm/groups.h"
#include "device/memory.h"
#include "models/families.h"
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
  EXPECT_FALSE(check_model_config(config).empty());
  set(options, "use-rotary-position-embeddings", "true");
  EXPECT_TRUE(check_model_config(config).empty());
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
         c.rope_scaling_high_freq_factor = 1;
       },
       "rope_scaling_high_freq_factor 1"},
      {[](ModelConfig& c) {
         c.eos_token_ids = {2, 37};
       },
       "eos_token_ids has 37"},
      {[](ModelConfig& c) { c.normalization = Normalization::kLayerNorm; }, "normalization LayerNorm"},
      {[](ModelConfig& c) { c.position_embedding_type = PositionEmbedding::kNone; }, "position_embedding_type none"},
      {[](ModelConfig& c) { c.swiglu = false; }, "GELU"},
      {[](ModelConfig& c) { c.add_bias_linear = true; }, "add_bias_linear true"},
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
  EXPECT_GE(check_model_config(ModelConfig()).size(), 8u);
}

TEST(ModelRules, LayoutsMustDivideHeadsGroupsAndFfn) {
  ModelConfig config = tiny_config();  // 6 heads, 2 groups, ffn 20
  EXPECT_TRUE(check_model_layout(config, 2).empty());
  EXPECT_EQ(check_model_layout(config, 3).size(), 2u);  // groups and ffn
  EXPECT_EQ(check_model_layout(config, 4).size(), 2u);  // heads and groups
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
  EXPECT_NEAR(3 * model->cost({.b = b, .s = s}).forward_flops, expected, 1e-9 * expected);
}

TEST(ModelCost, KeptBytesAreThoseOfTheAllocator) {
  count_cpu_memory();
  const Groups groups = Groups::single();
  ModelConfig config = tiny_config();
  config.hidden_size = 96;
  config.kv_channels = 16;
  config.ffn_hidden_size = 160;
  config.num_layers = 3;
  const int64_t b = 2, s = 128;
  // Of the fused operators: the plain compositions keep intermediate results too.
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const auto model = build_model(config, tiny_context(groups, dtype, Kernels::kFused));
    load(*model, golden_weights(*model, dtype));
    attach_gradients(*model);
    const ModelInput input = model_input(tiny_batch(config, b, s, false));
    const int64_t before = memory_stats(at::kCPU).allocated_bytes;
    const ModelOutput output = model->forward(input, {}, HeadOutput::kLoss);
    const auto held = static_cast<double>(memory_stats(at::kCPU).allocated_bytes - before);
    const int64_t activation_bytes = dtype == at::kFloat ? 4 : 2;
    const auto stated =
        static_cast<double>(model->cost({.b = b, .s = s, .activation_bytes = activation_bytes}).kept_bytes);
    // Beside the activations there are the angles' tables, losses, weights and positions: a few numbers a token.
    EXPECT_NEAR(held, stated, 0.02 * stated) << c10::toString(dtype);
  }
}

}  // namespace
}  // namespace megalith
