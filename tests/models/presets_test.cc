// Every preset in configs/models: read as the program reads it, built without storage, counted.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "config/yaml_document.h"
#include "models/layer_pattern.h"
#include "models/model_bounds.h"
#include "models/tiny_models.h"
#include "support/source_dir.h"

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

// Parameters: as the Hugging Face classes count them; of Megatron-LM's GPTs with the padding of the vocabulary. Work:
// Megatron-LM's formula with the unpadded vocabulary.
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
    {"mistral_7B_v0.1", 7'241'732'096, 0},
    {"mistral_7B_v0.3", 7'248'023'552, 0},
    {"mistral_nemo_12B", 12'247'782'400, 0},
    {"mistral_small_22B", 22'247'282'688, 0},
    {"mistral_small_24B", 23'572'403'200, 0},
    {"qwen2.5_0.5B", 494'032'768, 3.49},
    {"qwen2.5_1.5B", 1'543'714'304, 10.32},
    {"qwen2.5_3B", 3'085'938'688, 20.33},
    {"qwen2.5_7B", 7'615'616'512, 44.89},
    {"qwen2.5_14B", 14'770'033'664, 89.98},
    {"qwen2.5_32B", 32'763'876'352, 200.0},
    {"qwen2.5_72B", 72'706'203'648, 444.9},
    {"qwen3_0.6B", 596'049'920, 0},
    {"qwen3_1.7B", 1'720'574'976, 0},
    {"qwen3_4B", 4'022'468'096, 0},
    {"qwen3_8B", 8'190'735'360, 0},
    {"qwen3_14B", 14'768'307'200, 0},
    {"qwen3_32B", 32'762'123'264, 0},
    {"gemma2_2B", 2'614'341'888, 0},
    {"gemma2_9B", 9'241'705'984, 0},
    {"gemma2_27B", 27'227'128'320, 0},
    {"gemma3_1B", 999'885'952, 0},
    {"gemma3_4B", 3'880'263'168, 0},
    {"gemma3_12B", 11'766'034'176, 0},
    {"gemma3_27B", 27'009'346'304, 0},
    {"qwen3_30B_A3B", 30'532'122'624, 0},
    {"qwen3_235B_A22B", 235'093'634'560, 0},
    {"olmo2_1B", 1'484'916'736, 0},
    {"olmo2_7B", 7'298'617'344, 0},
    {"olmo2_13B", 13'716'198'400, 0},
    {"olmo2_32B", 32'234'279'936, 0},
    {"olmo3_7B", 7'298'011'136, 0},
    {"olmo3_32B", 32'233'522'176, 0},
    // With their prediction modules; the files repeat both tables in them.
    {"glm4.5", 352'797'829'024 + 3'988'069'792, 0},
    {"glm4.5_air", 106'852'251'264 + 2'375'059'584, 0},
    {"gpt_oss_20B", 20'914'757'184, 0},
    {"gpt_oss_120B", 116'829'156'672, 0},
    {"llama4_scout_17B_16E", 107'769'861'120, 0},
    {"llama4_maverick_17B_128E", 400'711'848'960, 0},
    {"smollm3_3B", 3'075'098'624, 0},
    {"lfm2_1.2B", 1'170'340'608, 0},
    {"lfm2_8B_A1B", 8'339'930'560, 0},
    {"t5_small", 60'506'624, 0},
    {"t5_base", 222'903'552, 0},
    {"t5_large", 737'668'096, 0},
    {"t5_3b", 2'851'598'336, 0},
    {"t5_11b", 11'307'321'344, 0},
    {"t5_220M", 222'495'744, 0},
    {"t5_v1.1_small", 76'961'152, 0},
    {"t5_v1.1_base", 247'577'856, 0},
    {"t5_v1.1_large", 783'150'080, 0},
    {"t5_v1.1_xl", 2'849'757'184, 0},
    {"t5_v1.1_xxl", 11'135'332'352, 0},
    {"gpt2", 124'439'808, 0},
    {"gpt2_medium", 354'823'168, 0},
    {"gpt2_large", 774'030'080, 0},
    {"gpt2_xl", 1'557'611'200, 0},
    {"gpt3_125M", 125'262'336, 0},
    {"gpt3_350M", 355'919'872, 0},
    {"gpt3_760M", 760'372'224, 0},
    {"gpt3_1.3B", 1'315'819'520, 0},
    {"gpt3_2.7B", 2'651'673'600, 0},
    {"gpt3_6.7B", 6'658'596'864, 0},
    {"gpt3_13B", 12'853'626'880, 0},
    {"gpt3_175B", 174'615'846'912, 1076.4},
    {"megatron_gpt_345M", 354'871'296, 0},
    {"megatron_gpt_1.7B", 1'652'230'656, 0},
    {"megatron_gpt_3.6B", 3'562'168'320, 0},
    {"megatron_gpt_7.5B", 7'467'786'240, 0},
    {"megatron_gpt_18B", 18'449'756'160, 0},
    {"megatron_gpt_39B", 39'096'041'472, 0},
    {"megatron_gpt_76B", 76'050'739'200, 0},
    {"megatron_gpt_145B", 145'622'261'760, 0},
    {"megatron_gpt_310B", 310'130'540'544, 0},
    {"megatron_gpt_530B", 529'600'819'200, 0},
    {"megatron_gpt_1T", 1'008'038'758'400, 0},
    {"mixtral_8x7B_v0.1", 46'702'792'704, 79.71},
    {"mixtral_8x22B_v0.1", 140'620'634'112, 242.2},
    {"deepseek_v2_lite", 15'706'484'224, 16.39},
    {"deepseek_v2", 235'741'434'880, 155.0},
    {"deepseek_v3", 671'026'419'200 + 11'610'068'224, 260.0},  // with its prediction module
    {"demo_mixtral", 13'511'424, 0},
    {"demo_deepseek", 8'896'048 + 2'803'152, 0},
    {"demo_bert", 4'345'346, 0},
    {"demo_t5", 6'885'888, 0},
    {"demo_ict", 954'112, 0},
    {"demo", 11'015'040, 0},
    {"llama_125M", 124'668'672, 0},
    {"bert_base", 110'106'428, 0},
    {"bert_large", 336'226'108, 0},
    {"bert_345M", 336'297'858, 0},
    {"ict_217M", 217'890'816, 0},
    {"flux_dev", 11'901'408'320, 0},
    {"flux_schnell", 11'891'178'560, 0},
    {"flux_535M", 535'318'336, 0},
};

std::string family_of(const std::string& preset) {
  if (preset.starts_with("flux")) return "flux";
  if (preset.starts_with("bert")) return preset == "bert_345M" ? "encoder" : "bert";
  if (preset.starts_with("ict")) return "biencoder";
  if (preset.starts_with("gpt_oss")) return "gpt_oss";
  if (preset.starts_with("t5_")) return preset == "t5_220M" ? "megatron_t5" : "t5";
  if (preset.find("gpt") != std::string::npos) return "gpt2";
  if (preset == "demo_bert") return "encoder";
  if (preset == "demo_t5") return "t5";
  if (preset == "demo_ict") return "biencoder";
  if (preset == "demo_mixtral") return "mixtral";
  if (preset == "demo_deepseek") return "deepseek_v3";
  if (preset.starts_with("mistral")) return preset == "mistral_7B_v0.1" ? "mistral" : "llama";  // the others see all
  if (preset.starts_with("glm4.5")) return "glm4_moe";
  if (preset.starts_with("lfm2")) return preset == "lfm2_8B_A1B" ? "lfm2_moe" : "lfm2";
  if (preset.ends_with("_A3B") || preset.ends_with("_A22B")) return "qwen3_moe";
  for (const char* family :
       {"mixtral", "deepseek_v2", "deepseek_v3", "olmo2", "olmo3", "gemma2", "gemma3", "llama4", "smollm3"}) {
    if (preset.starts_with(family)) return family;
  }
  if (preset.starts_with("qwen")) return preset.starts_with("qwen3") ? "qwen3" : "qwen2";
  return "llama";
}

const std::filesystem::path kFolder = test::source_dir() / "configs" / "models";

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
    const bool has_dropout = (family_of(expected.preset) == "gpt2" || config.model_type != ModelType::kGpt) &&
                             !expected.preset.starts_with("demo_");
    EXPECT_EQ(family_for(config).name, family_of(expected.preset)) << expected.preset;
    EXPECT_EQ(config.hidden_dropout, has_dropout ? 0.1 : 0);
    EXPECT_EQ(config.attention_dropout, has_dropout ? 0.1 : 0);
    if (!config.is_diffusion()) {
      // OpenAI's vocabulary of 50257, OLMo 3's, Llama 4's, that of bytes, that of Gemma 3's images and BERT's are
      // padded, the others are multiples already.
      const int64_t padded = expected.preset.starts_with("gpt2")     ? 50304
                             : *config.vocab_size == 257             ? 384
                             : expected.preset.starts_with("olmo3")  ? 100352
                             : expected.preset.starts_with("llama4") ? 202112
                             : *config.vocab_size == 262208          ? 262272
                             : *config.vocab_size == 30522           ? 30592
                                                                     : *config.vocab_size;
      EXPECT_EQ(config.padded_vocab_size(1), padded) << expected.preset;
    }
    LayerContext context = tiny_context(groups, at::kBFloat16);
    context.device = at::kMeta;
    const auto model = build_model(config, context);
    EXPECT_EQ(model->num_parameters(), expected.parameters) << expected.preset;
    // Biases and norms, which are no matrices, have less than a hundredth of the parameters.
    const auto parameters = static_cast<double>(expected.parameters);
    EXPECT_NEAR(count_matrix_elements(config), parameters, 0.01 * parameters) << expected.preset;
    if (expected.gflop_per_token_4096 == 0) continue;
    const int64_t s = 4096;
    const double causal_half =
        3.0 * static_cast<double>((config.num_layers + config.num_prediction_modules()) * s *
                                  config.num_attention_heads * (config.query_head_dim() + config.value_head_dim()));
    double routers = 0;  // the formula leaves them out
    for (int64_t layer = 0; layer < config.num_layers + config.num_prediction_modules(); ++layer) {
      if (config.has_experts_at(layer)) routers += 6.0 * static_cast<double>(config.hidden_size * *config.num_experts);
    }
    const double per_token = 3 * model->forward_flops({.b = 1, .s = s}) / s - causal_half - routers;
    // Three to five digits are published.
    EXPECT_NEAR(per_token * 1e-9, expected.gflop_per_token_4096, 0.002 * expected.gflop_per_token_4096)
        << expected.preset;
  }
}

// Settings that Primus's presets leave out and Hugging Face's files have.
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
  EXPECT_EQ(count("mixtral_8x22B_v0.1", [](ModelConfig& c) { c.num_layers = 4; }), 10'409'465'856);
  EXPECT_EQ(count("mixtral_8x22B_v0.1", [](ModelConfig& c) { c.vocab_size = 32768; }), 140'630'071'296);
  EXPECT_EQ(count("deepseek_v2_lite", [](ModelConfig& c) { c.multi_latent_attention = c.qk_layernorm = false; }),
            15'787'866'112);
  const auto three_layers = [](ModelConfig& c) {
    c.num_layers = 3;
    c.moe_layer_freq = "1";
  };
  EXPECT_EQ(count("deepseek_v3", three_layers), 36'375'223'296 + 768 + 11'610'067'968 + 256);
  EXPECT_EQ(count("deepseek_v3",
                  [](ModelConfig& c) {
                    c.num_layers = 32;
                    c.moe_layer_freq = moe_layer_freq_text(3, 32);
                    c.mtp_num_layers = 0;
                  }),
            337'315'109'888 + 29 * 256);
}

}  // namespace
}  // namespace megalith
