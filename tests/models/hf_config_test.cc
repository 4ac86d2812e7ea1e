// config.json of transformers 4 and 5, both ways, and what is refused.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "models/families.h"
#include "models/layer_pattern.h"
#include "support/temporary_folder.h"

namespace megalith {
namespace {

using nlohmann::json;

// As transformers 4.57 saves a Llama 3.2.
json llama_v4() {
  return json::parse(R"({
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128256, "hidden_size": 2048,
    "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
    "head_dim": 64, "hidden_act": "silu", "max_position_embeddings": 131072, "initializer_range": 0.02,
    "rms_norm_eps": 1e-05, "use_cache": true, "tie_word_embeddings": true, "rope_theta": 500000.0,
    "rope_scaling": {"factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                     "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    "attention_bias": false, "attention_dropout": 0.0, "mlp_bias": false, "pretraining_tp": 1,
    "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009], "torch_dtype": "bfloat16"})");
}

// The same as transformers 5 saves it.
json llama_v5() {
  json config = llama_v4();
  config["rope_parameters"] = config["rope_scaling"];
  config["rope_parameters"]["rope_theta"] = 500000.0;
  config.erase("rope_scaling");
  config.erase("rope_theta");
  config["dtype"] = config["torch_dtype"];
  config.erase("torch_dtype");
  return config;
}

json qwen_v4() {
  return json::parse(R"({
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": 152064, "hidden_size": 3584,
    "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
    "hidden_act": "silu", "max_position_embeddings": 131072, "max_window_layers": 28, "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0, "sliding_window": 131072, "use_sliding_window": false, "use_mrope": false,
    "tie_word_embeddings": false, "bos_token_id": 151643, "eos_token_id": 151643, "attention_dropout": 0.0,
    "initializer_range": 0.02, "torch_dtype": "bfloat16", "use_cache": true})");
}

// As Qwen/Qwen3-0.6B has it: heads of 128 channels, twice as wide together as hidden_size.
json qwen3_v4() {
  return json::parse(R"({
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 1024,
    "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
    "head_dim": 128, "hidden_act": "silu", "max_position_embeddings": 40960, "max_window_layers": 28,
    "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null,
    "use_sliding_window": false, "tie_word_embeddings": true, "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": 151643, "eos_token_id": 151645, "initializer_range": 0.02, "torch_dtype": "bfloat16",
    "use_cache": true})");
}

// The window of 64 tokens in the layers from `first` on.
json with_upper_window(json config, int64_t first) {
  config["use_sliding_window"] = true;
  config["sliding_window"] = 64;
  config["max_window_layers"] = first;
  return config;
}

// As mistralai/Mistral-7B-v0.1 has it.
json mistral_v4() {
  return json::parse(R"({
    "architectures": ["MistralForCausalLM"], "model_type": "mistral", "vocab_size": 32000, "hidden_size": 4096,
    "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "hidden_act": "silu", "max_position_embeddings": 32768, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
    "sliding_window": 4096, "tie_word_embeddings": false, "bos_token_id": 1, "eos_token_id": 2,
    "initializer_range": 0.02, "torch_dtype": "bfloat16", "use_cache": true})");
}

// As google/gemma-2-9b has it.
json gemma2_v4() {
  return json::parse(R"({
    "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "vocab_size": 256000, "hidden_size": 3584,
    "intermediate_size": 14336, "num_hidden_layers": 42, "num_attention_heads": 16, "num_key_value_heads": 8,
    "head_dim": 256, "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 8192, "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "sliding_window": 4096,
    "sliding_window_size": 4096, "query_pre_attn_scalar": 256, "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0, "attention_bias": false, "attention_dropout": 0.0, "cache_implementation": "hybrid",
    "bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0, "initializer_range": 0.02,
    "use_cache": true})");
}

// As google/gemma-3-1b-pt has it.
json gemma3_v4() {
  return json::parse(R"({
    "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "vocab_size": 262144, "hidden_size": 1152,
    "intermediate_size": 6912, "num_hidden_layers": 26, "num_attention_heads": 4, "num_key_value_heads": 1,
    "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000, "rope_scaling": null, "rope_theta": 1000000,
    "sliding_window": 512, "sliding_window_pattern": 6, "query_pre_attn_scalar": 256, "attn_logit_softcapping": null,
    "final_logit_softcapping": null, "attention_bias": false, "attention_dropout": 0.0, "cache_implementation": "hybrid",
    "bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0, "initializer_range": 0.02, "torch_dtype": "bfloat16",
    "use_cache": true})");
}

class HfConfig : public testing::Test {
 protected:
  HfModel read(const json& config) {
    std::ofstream(folder_.path() / "config.json") << config.dump(2);
    return read_hf_config(folder_.path());
  }
  std::string refusal(const json& config) {
    try {
      read(config);
    } catch (const UserError& error) {
      return error.message();
    }
    return "accepted";
  }
  test::TemporaryFolder folder_;
};

std::map<std::string, std::string> as_text(ModelConfig config) {
  std::map<std::string, std::string> text;
  const OptionSet options(config);
  for (const auto& option : options.options()) text[option->name()] = option->text();
  return text;
}

TEST_F(HfConfig, VersionsFourAndFiveSayTheSame) {
  const HfModel four = read(llama_v4()), five = read(llama_v5());
  EXPECT_EQ(four.family->name, "llama");
  EXPECT_EQ(as_text(four.config), as_text(five.config));
  const ModelConfig& config = four.config;
  EXPECT_EQ(config.num_layers, 16);
  EXPECT_EQ(config.ffn_size(), 8192);
  EXPECT_EQ(config.num_kv_heads(), 8);
  EXPECT_EQ(config.head_dim(), 64);
  EXPECT_EQ(config.rotary_base, 5e5);
  EXPECT_TRUE(config.use_rope_scaling);
  EXPECT_EQ(config.rope_scaling_factor, 32);
  EXPECT_EQ(config.norm_epsilon, 1e-5);
  EXPECT_FALSE(config.untie_embeddings_and_output_weights);
  EXPECT_EQ(config.hidden_dropout, 0);
  EXPECT_EQ(config.bos_token_id, 128000);
  EXPECT_EQ(config.eos_token_ids, (std::vector<int64_t>{128001, 128008, 128009}));
}

TEST_F(HfConfig, QwenHasQkvBiasesAndIgnoresAnUnusedWindow) {
  const HfModel qwen = read(qwen_v4());
  EXPECT_EQ(qwen.family->name, "qwen2");
  EXPECT_TRUE(qwen.config.add_qkv_bias);
  EXPECT_EQ(qwen.config.head_dim(), 128);
  EXPECT_FALSE(qwen.config.use_rope_scaling);
  EXPECT_EQ(qwen.config.eos_token_ids, std::vector<int64_t>{151643});
}

TEST_F(HfConfig, Qwen3HasNormsOfHeadsAndAHeadDimOfItsOwn) {
  json published = qwen3_v4();
  const HfModel qwen = read(published);
  EXPECT_EQ(qwen.family->name, "qwen3");
  EXPECT_EQ(family_for(qwen.config).name, "qwen3");
  EXPECT_TRUE(qwen.config.qk_layernorm);
  EXPECT_EQ(qwen.config.head_dim(), 128);
  EXPECT_FALSE(qwen.config.untie_embeddings_and_output_weights);
  // The class takes 128, and not hidden_size / num_attention_heads, which is 64.
  published.erase("head_dim");
  EXPECT_EQ(as_text(read(published).config), as_text(qwen.config));
  published["hidden_size"] = 2048;
  const ModelConfig even = read(published).config;
  EXPECT_EQ(even.head_dim(), 128);
  EXPECT_FALSE(even.kv_channels.has_value());
}

TEST_F(HfConfig, MistralHasAWindow) {
  json published = mistral_v4();
  const HfModel mistral = read(published);
  EXPECT_EQ(mistral.family->name, "mistral");
  EXPECT_EQ(mistral.config.window_size, (std::vector<int64_t>{4095, 0}));
  EXPECT_EQ(mistral.config.attention_window(), 4096);
  EXPECT_EQ(family_for(mistral.config).name, "mistral");
  published.erase("sliding_window");  // the class takes 4096
  EXPECT_EQ(as_text(read(published).config), as_text(mistral.config));
  published["sliding_window"] = nullptr;  // from version 0.2 of the model on
  const ModelConfig without = read(published).config;
  EXPECT_EQ(without.attention_window(), 0);
  EXPECT_EQ(family_for(without).name, "llama");
}

TEST_F(HfConfig, QwenHasAWindowInAllLayersInNoneOrInSome) {
  for (const json& original : {qwen_v4(), qwen3_v4()}) {
    const HfModel upper = read(with_upper_window(original, 20));
    EXPECT_EQ(upper.config.attention_window(), 64);
    EXPECT_EQ(upper.config.layers_with_window(), parse_window_attn_skip_freq("[0]*20+[1]*8", 28));
    EXPECT_EQ(family_for(upper.config).name, upper.family->name);
    const json written_upper = upper.family->to_hf(upper.config, at::kBFloat16);
    EXPECT_EQ(written_upper.at("max_window_layers"), 20);
    EXPECT_EQ(as_text(read(written_upper).config), as_text(upper.config));
    EXPECT_EQ(read(with_upper_window(original, 28)).config.attention_window(), 0);
    EXPECT_EQ(read(with_upper_window(original, 0)).config.attention_window(), 64);
    json typed = with_upper_window(original, 28);  // the types win
    typed["layer_types"] = std::vector<std::string>(28, "sliding_attention");
    EXPECT_EQ(read(typed).config.attention_window(), 64);
    typed["use_sliding_window"] = false;
    EXPECT_NE(refusal(typed).find("use_sliding_window is false"), std::string::npos);
    const HfModel windowed = read(with_upper_window(original, 0));
    const json written = windowed.family->to_hf(windowed.config, at::kBFloat16);
    EXPECT_EQ(written.at("max_window_layers"), 0);
    EXPECT_EQ(as_text(read(written).config), as_text(windowed.config));
  }
}

TEST_F(HfConfig, Gemma2HasCapsAndAWindowInEveryOtherLayer) {
  json published = gemma2_v4();
  const HfModel gemma = read(published);
  EXPECT_EQ(gemma.family->name, "gemma2");
  EXPECT_EQ(family_for(gemma.config).name, "gemma2");
  EXPECT_FALSE(gemma.config.untie_embeddings_and_output_weights);
  EXPECT_EQ(gemma.config.attn_logit_softcapping, 50);
  EXPECT_EQ(gemma.config.final_logit_softcapping, 30);
  EXPECT_EQ(gemma.config.attention_window(), 4096);
  EXPECT_EQ(gemma.config.layers_with_window(), parse_window_attn_skip_freq("2", 42));
  for (const char* key :
       {"attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar", "head_dim", "sliding_window"}) {
    published.erase(key);
  }
  EXPECT_EQ(as_text(read(published).config), as_text(gemma.config));  // the class's own are those of 9B
  published["attn_logit_softcapping"] = published["final_logit_softcapping"] = nullptr;
  EXPECT_EQ(read(published).config.attn_logit_softcapping, 0);
  EXPECT_EQ(read(published).config.final_logit_softcapping, 0);
  published["layer_types"] = std::vector<std::string>(42, "full_attention");
  const HfModel whole = read(published);
  EXPECT_EQ(whole.config.attention_window(), 0);
  const json written = whole.family->to_hf(whole.config, at::kBFloat16);
  EXPECT_EQ(as_text(read(written).config), as_text(whole.config));
}

TEST_F(HfConfig, Gemma3HasTwoRotationsInEitherVersion) {
  json published = gemma3_v4();
  const HfModel gemma = read(published);
  EXPECT_EQ(gemma.family->name, "gemma3");
  EXPECT_EQ(family_for(gemma.config).name, "gemma3");
  EXPECT_EQ(gemma.config.rotary_base, 1e6);
  EXPECT_EQ(gemma.config.rotary_base_local, 1e4);
  EXPECT_EQ(gemma.config.layers_with_window(), parse_window_attn_skip_freq("6", 26));
  json five = published;
  for (const char* key : {"rope_theta", "rope_scaling", "rope_local_base_freq"}) five.erase(key);
  EXPECT_EQ(as_text(read(five).config), as_text(gemma.config));  // the class's defaults
  five["rope_parameters"] = {{"full_attention", {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 1e6}}},
                             {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 1e4}}}};
  published["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8.0}};
  EXPECT_EQ(read(published).config.rotary_seq_len_interpolation_factor, 8);
  EXPECT_EQ(as_text(read(five).config), as_text(read(published).config));
  published["sliding_window_pattern"] = 2;
  EXPECT_EQ(read(published).config.layers_with_window(), parse_window_attn_skip_freq("2", 26));
}

TEST_F(HfConfig, MissingAndNullKeysTakeTheClassDefaults) {
  json config = llama_v4();
  for (const char* key : {"rope_theta", "tie_word_embeddings", "num_key_value_heads", "rms_norm_eps", "eos_token_id"})
    config.erase(key);
  config["rope_scaling"] = nullptr;
  config["head_dim"] = nullptr;
  const ModelConfig read_config = read(config).config;
  EXPECT_EQ(read_config.rotary_base, 10000);
  EXPECT_TRUE(read_config.untie_embeddings_and_output_weights);
  EXPECT_EQ(read_config.num_kv_heads(), 32);
  EXPECT_EQ(read_config.norm_epsilon, 1e-6);
  EXPECT_TRUE(read_config.eos_token_ids.empty());
  config["head_dim"] = 128;  // not hidden / heads
  EXPECT_EQ(read(config).config.head_dim(), 128);
}

TEST_F(HfConfig, WhatIsWrittenReadsBackTheSame) {
  for (const json& original : {llama_v4(), mistral_v4(), qwen_v4(), qwen3_v4(), gemma2_v4(), gemma3_v4()}) {
    const HfModel model = read(original);
    const json written = model.family->to_hf(model.config, at::kBFloat16);
    EXPECT_EQ(as_text(read(written).config), as_text(model.config));
    for (const char* key : {"model_type", "architectures", "rope_theta", "num_key_value_heads", "tie_word_embeddings",
                            "eos_token_id", "torch_dtype", "use_sliding_window", "attention_bias", "head_dim"}) {
      if (!original.contains(key)) continue;
      EXPECT_EQ(written.at(key), original.at(key)) << key;
    }
  }
}

TEST_F(HfConfig, WhatCannotBeHonouredIsNamed) {
  struct Case {
    json base;
    std::string key;
    json value;
    std::string message;
  };
  const Case cases[] = {
      {llama_v4(), "attention_bias", true, "attention_bias is true"},
      {llama_v4(), "mlp_bias", true, "mlp_bias is true"},
      {qwen3_v4(), "attention_bias", true, "attention_bias is true"},
      {with_upper_window(qwen3_v4(), 8), "layer_types", {"full_attention"}, "layer_types has 1 entries"},
      {with_upper_window(qwen_v4(), 8), "layer_types", {"chunked_attention"}, "chunked_attention"},
      {with_upper_window(qwen_v4(), 0), "sliding_window", 0, "at least 1"},
      {llama_v4(), "layer_types", {"sliding_attention"}, "sliding_attention"},
      {gemma2_v4(), "hidden_activation", "gelu", "hidden_activation is \"gelu\""},
      {gemma2_v4(), "attention_bias", true, "attention_bias is true"},
      {gemma3_v4(), "use_bidirectional_attention", true, "use_bidirectional_attention is true"},
      {gemma3_v4(), "attn_logit_softcapping", 50.0, "attn_logit_softcapping is 50.0"},
      {gemma3_v4(), "sliding_window_pattern", 0, "at least 1"},
      {gemma3_v4(), "model_type", "gemma3", "model_type 'gemma3' is not provided"},
      {llama_v4(), "hidden_act", "gelu", "hidden_act is \"gelu\""},
      {llama_v4(), "rope_scaling", {{"rope_type", "yarn"}, {"factor", 4}}, "'yarn'"},
      {llama_v4(), "rope_scaling", {{"type", "linear"}, {"factor", 4}}, "'linear'"},
      {llama_v4(), "rope_scaling", {{"rope_type", "llama3"}}, "factor"},
      {llama_v4(), "quantization_config", {{"quant_method", "awq"}}, "quantised (awq)"},
      {llama_v4(), "quantization_config", {{"quant_method", "fp8"}, {"fmt", "e5m2"}}, "quantised (fp8 e5m2)"},
      {llama_v4(), "partial_rotary_factor", 0.5, "partial_rotary_factor is 0.5"},
      {llama_v4(), "model_type", "mamba", "model_type 'mamba' is not provided"},
      {llama_v4(), "architectures", {"LlamaForTokenClassification"}, "LlamaForTokenClassification"},
      {llama_v4(), "hidden_size", "big", "hidden_size"},
      {llama_v4(), "hidden_size", nullptr, "hidden_size"},
      {llama_v4(), "num_key_value_heads", 0, "at least 1"},
      {llama_v4(), "num_key_value_heads", 5, "num_query_groups 5 does not divide"},
      {qwen_v4(), "layer_types", std::vector<std::string>(28, "sliding_attention"), "sliding_attention"},
  };
  for (const Case& tested : cases) {
    json config = tested.base;
    config[tested.key] = tested.value;
    const std::string message = refusal(config);
    EXPECT_NE(message.find(tested.message), std::string::npos) << tested.key << ": " << message;
  }
  std::filesystem::remove(folder_.path() / "config.json");
  EXPECT_THROW(read_hf_config(folder_.path()), UserError);
}

TEST_F(HfConfig, WhatAConfigFileCannotSayIsNotExported) {
  HfModel model = read(llama_v4());
  model.config.rotary_interleaved = true;
  EXPECT_THROW(model.family->to_hf(model.config, at::kFloat), UserError);
}

}  // namespace
}  // namespace megalith
