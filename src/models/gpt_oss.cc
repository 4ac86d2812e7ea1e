// gpt-oss: experts in every layer, with biases everywhere, gates of a clamped quick GELU, and all experts of a layer in
// one tensor; a window in every other layer, and sinks in attention. Published files have the experts in MXFP4
// (checkpoint/tensor_store.h).
// Source: OpenAI 2025, arXiv:2508.10925.
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json.h"
#include "models/families.h"
#include "models/hf_config.h"
#include "models/transformer.h"

namespace megalith {

namespace gpt_oss {
namespace {

// The class has these numbers in its code.
constexpr double kLimit = 7, kOffset = 1;

// What the class takes for missing keys, where it differs from what other classes take.
Json with_defaults(const Json& file) {
  Json json = file;
  const auto set = [&](const char* key, const Json& value) {
    if (!json.contains(key)) json[key] = value;
  };
  if (!json.contains("rope_parameters")) {
    set("rope_theta", 150000.0);
    set("rope_scaling", {{"rope_type", "yarn"},
                         {"factor", 32.0},
                         {"beta_fast", 32.0},
                         {"beta_slow", 1.0},
                         {"truncate", false},
                         {"original_max_position_embeddings", 4096}});
  }
  // Tensors say themselves that they are packed.
  const Json* quantization = find_member(file, "quantization_config", kHfConfigFile);
  if (quantization != nullptr && json_get_or<std::string>(*quantization, "quant_method", "", kHfConfigFile) == "mxfp4")
    json.erase("quantization_config");
  set("head_dim", 64);
  set("num_key_value_heads", 8);
  return json;
}

ModelConfig from_hf(const Json& file) {
  refuse_unless(file, "attention_bias", true, "the class has biases in attention");
  refuse_unless(file, "swiglu_limit", kLimit, "the class limits the experts' gates by this number");
  const Json json = with_defaults(file);
  ModelConfig config = read_hf_decoder(
      json,
      {.max_position_embeddings = 131072, .allows_heads_yarn = true, .allows_window = true, .norm_epsilon = 1e-5});
  read_hf_windowed_layers(json, {.window = 128, .skip_freq = "2"}, config);
  config.swiglu = false;
  config.quick_geglu = true;
  config.glu_linear_offset = kOffset;
  config.activation_func_clamp_value = kLimit;
  config.add_bias_linear = true;
  config.softmax_type = SoftmaxType::kLearnable;
  config.num_experts = json_get_or<int64_t>(json, "num_local_experts", 128, kHfConfigFile);
  config.moe_router_topk = json_get_or<int64_t>(json, "num_experts_per_tok", 4, kHfConfigFile);
  check_hf_sizes({*config.num_experts, config.moe_router_topk});
  // Only where the class would add the loss. It sums over layers and choices: its balanced value is k, Megatron's is 1.
  if (json_get_or<bool>(json, "output_router_logits", false, kHfConfigFile)) {
    config.moe_aux_loss_coeff = json_get_or<double>(json, "router_aux_loss_coef", 0.9, kHfConfigFile);
  }
  return config;
}

Json to_hf(const ModelConfig& config, at::ScalarType dtype) {
  Json json = write_hf_decoder(config, dtype);
  write_hf_windowed_layers(config, json);
  json.update({
      {"architectures", {"GptOssForCausalLM"}},
      {"model_type", "gpt_oss"},
      {"attention_bias", true},
      {"swiglu_limit", kLimit},
      {"num_local_experts", config.num_experts.value_or(0)},
      {"num_experts_per_tok", config.moe_router_topk},
      {"experts_per_token", config.moe_router_topk},
      {"output_router_logits", false},
      {"router_aux_loss_coef", config.moe_aux_loss_coeff},
  });
  return json;
}

std::unique_ptr<Model> build(const ModelConfig& config, const LayerContext& context, const ModelPart& part) {
  TransformerNames names;
  names.experts = {
      .stacked_gate_up = "gate_up_proj", .stacked_down = "down_proj", .are_interleaved = true, .router = "router"};
  return std::make_unique<Transformer>(config, names, context, part);
}

}  // namespace
}  // namespace gpt_oss

extern const ModelFamily kGptOss;
const ModelFamily kGptOss = {.name = "gpt_oss",
                             .hf_model_type = "gpt_oss",
                             .hf_class = "GptOssForCausalLM",
                             .from_hf = gpt_oss::from_hf,
                             .to_hf = gpt_oss::to_hf,
                             .units = transformer_units,
                             .build = gpt_oss::build};

}  // namespace megalith
