// Every preset in configs/models: read as the program reads it, built without storage, counted.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/yaml_document.h"
#include "models/tiny_models.h"

namespace megalith {
namespace {

using namespace test;

ModelConfig read_preset(const std::filesystem::path& file) {
  ModelConfig config;
  const OptionSet options(config);
  const YamlDocument document = load_yaml(file, {});
  if (!document.errors.empty()) throw UserErrors(document.errors);
  for (const auto& [key, value] : document.root.children) {
    Option* option = options.find(key);
    if (option == nullptr) throw UserError(fmt::format("{}: {} is no option of the model", file.string(), key));
    option->assign(value.written(), {.layer = OptionLayer::kPreset, .where = value.where});
  }
  return config;
}

struct Expected {
  std::string preset;
  int64_t parameters;
  double gflop_per_token_4096;  // forward and backward, causal attention halved; 0: no published figure
};

// Parameters: as the Hugging Face classes count them. Work: Megatron-LM's formula with the unpadded vocabulary.
const Expected kExpected[] = {
    {"llama2_7B", 6'738'415'616, 42.86},
    {"llama2_13B", 13'015'864'320, 82.14},
    {"llama2_70B", 68'976'648'192, 428.4},
    {"llama3_8B", 8'030'261'248, 48.25},
    {"llama3_70B", 70'553'706'496, 433.1},
    {"llama3.1_8B", 8'030'261'248, 48.25},
    {"llama3.1_70B", 70'553'706'496, 433.1},
    {"llama3.1_405B", 405'853'388'800, 2473.2},
    {"llama3.2_1B", 1'235'814'400, 8.22},
    {"llama3.2_3B", 3'212'749'824, 21.39},
    {"llama3.3_70B", 70'553'706'496, 433.1},
    {"qwen2.5_0.5B", 494'032'768, 3.49},
    {"qwen2.5_1.5B", 1'543'714'304, 10.32},
    {"qwen2.5_3B", 3'085'938'688, 20.33},
    {"qwen2.5_7B", 7'615'616'512, 44.89},
    {"qwen2.5_14B", 14'770'033'664, 89.98},
    {"qwen2.5_32B", 32'763'876'352, 200.0},
    {"qwen2.5_72B", 72'706'203'648, 444.9},
    {"demo", 11'015'040, 0},
    {"llama_125M", 124'668'672, 0},
};

const std::filesystem::path kFolder = std::filesystem::path(MEGALITH_SOURCE_DIR) / "configs" / "models";

TEST(Presets, AreAllListedHere) {
  std::vector<std::string> found, listed;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) found.push_back(entry.path().stem().string());
  for (const Expected& expected : kExpected) listed.push_back(expected.preset);
  std::sort(found.begin(), found.end());
  std::sort(listed.begin(), listed.end());
  EXPECT_EQ(found, listed);
}

TEST(Presets, HaveThePublishedParametersAndWork) {
  const Groups groups = Groups::single();
  for (const Expected& expected : kExpected) {
    const ModelConfig config = read_preset(kFolder / (expected.preset + ".yaml"));
    EXPECT_TRUE(check_model_config(config).empty()) << expected.preset;
    EXPECT_EQ(family_for(config).name, expected.preset.starts_with("qwen") ? "qwen2" : "llama");
    EXPECT_EQ(config.hidden_dropout, 0);
    EXPECT_EQ(config.attention_dropout, 0);
    EXPECT_EQ(config.padded_vocab_size(1), config.vocab_size) << expected.preset;
    LayerContext context = tiny_context(groups, at::kBFloat16);
    context.device = at::kMeta;
    const auto model = build_model(config, context);
    EXPECT_EQ(model->num_parameters(), expected.parameters) << expected.preset;
    if (expected.gflop_per_token_4096 == 0) continue;
    const int64_t s = 4096;
    const double causal_half =
        6.0 * static_cast<double>(config.num_layers * s * config.num_attention_heads * config.head_dim());
    const double per_token = 3 * model->cost({.b = 1, .s = s}).forward_flops / s - causal_half;
    // Three to five digits are published.
    EXPECT_NEAR(per_token * 1e-9, expected.gflop_per_token_4096, 0.002 * expected.gflop_per_token_4096)
        << expected.preset;
  }
}

// What Primus's presets leave out and Hugging Face's files have.
TEST(Presets, FollowHuggingFaceWherePrimusDoesNot) {
  for (const auto& [name, factor] : std::map<std::string, double>{
           {"llama3_8B", 0}, {"llama3.1_8B", 8}, {"llama3.1_405B", 8}, {"llama3.2_1B", 32}, {"llama3.3_70B", 8}}) {
    const ModelConfig config = read_preset(kFolder / (name + ".yaml"));
    EXPECT_EQ(config.use_rope_scaling, factor != 0) << name;
    if (factor != 0) {
      EXPECT_EQ(config.rope_scaling_factor, factor) << name;
    }
    EXPECT_EQ(config.max_position_embeddings, factor == 0 ? 8192 : 131072) << name;
  }
  EXPECT_FALSE(read_preset(kFolder / "llama3.2_3B.yaml").untie_embeddings_and_output_weights);
  const ModelConfig qwen = read_preset(kFolder / "qwen2.5_3B.yaml");
  EXPECT_TRUE(qwen.add_qkv_bias);
  EXPECT_FALSE(qwen.untie_embeddings_and_output_weights);
  EXPECT_EQ(qwen.norm_epsilon, 1e-6);
  EXPECT_EQ(read_preset(kFolder / "qwen2.5_72B.yaml").norm_epsilon, 1e-5);
}

// The variants that Primus's own presets describe, reached by options on the command line.
TEST(Presets, PrimusVariantsHaveTheirCounts) {
  const Groups groups = Groups::single();
  LayerContext context = tiny_context(groups);
  context.device = at::kMeta;
  const auto count = [&](const std::string& preset, const std::function<void(ModelConfig&)>& change) {
    ModelConfig config = read_preset(kFolder / (preset + ".yaml"));
    change(config);
    return build_model(config, context)->num_parameters();
  };
  const auto untie = [](ModelConfig& c) { c.untie_embeddings_and_output_weights = true; };
  EXPECT_EQ(count("llama3.2_1B", untie), 1'498'482'688);
  EXPECT_EQ(count("llama3.2_3B", untie), 3'606'752'256);
  EXPECT_EQ(count("qwen2.5_7B", [](ModelConfig& c) { c.add_qkv_bias = false; }), 7'615'487'488);
  EXPECT_EQ(count("qwen2.5_72B", [](ModelConfig& c) { c.add_qkv_bias = false; }), 72'705'384'448);
  EXPECT_EQ(count("llama3.1_70B", [](ModelConfig& c) { c.num_layers = 40; }), 36'327'530'496);
}

}  // namespace
}  // namespace megalith
