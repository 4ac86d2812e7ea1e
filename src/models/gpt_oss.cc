// gpt-oss: experts in every layer, biases everywhere, clamped quick GELU gates, a layer's experts in one tensor; a
// window in every other layer, attention sinks. Published files have the experts in MXFP4 (checkpoint/tensor_store.h).
// Source: OpenAI 2025, arXiv:2508.10925.
#include "models/families.h"
#include "models/hf_shared_rows.h"
#include "models/transformer.h"

namespace megalith {

namespace gpt_oss {
namespace {

// Hard-coded in the class.
constexpr double kLimit = 7, kOffset = 1;

// The tensors themselves tell that they are packed.
Json without_mxfp4(const Json& file) {
  Json json = hf_in_version_4(file);
  const Json* quantization = find_member(file, "quantization_config", kHfConfigFile);
  if (quantization != nullptr && json_get_or<std::string>(*quantization, "quant_method", "", kHfConfigFile) == "mxfp4")
    json.erase("quantization_config");
  return json;
}

HfRows rows() {
  return hf_decoder_rows()
      .prepare(without_mxfp4)
      .fixed("attention_bias", true, "the class has biases in attention")
      .fixed("swiglu_limit", kLimit, "the class limits the experts' gates by this number")
      .field("max_position_embeddings", &ModelConfig::max_position_embeddings, 131072)
      .nullable("num_key_value_heads", &ModelConfig::num_query_groups, 8, &ModelConfig::num_attention_heads,
                &ModelConfig::num_kv_heads)
      .field("head_dim", &ModelConfig::kv_channels, 64, &ModelConfig::query_head_dim)
      .field("rms_norm_eps", &ModelConfig::norm_epsilon, 1e-5)
      .field("rope_theta", &ModelConfig::rotary_base, 150000.0)
      .join(hf_rope_rows({"llama3", "yarn"}, {{"rope_type", "yarn"},
                                              {"factor", 32.0},
                                              {"truncate", false},
                                              {"original_max_position_embeddings", 4096}}))
      .join(hf_windowed_layers_rows(128, 2))
      .always(&ModelConfig::swiglu, false)
      .always(&ModelConfig::quick_geglu, true)
      .always(&ModelConfig::glu_linear_offset, kOffset)
      .always(&ModelConfig::activation_func_clamp_value, kLimit)
      .always(&ModelConfig::add_bias_linear, true)
      .always(&ModelConfig::softmax_type, SoftmaxType::kLearnable)
      .field("num_local_experts", &ModelConfig::num_experts, 128, &ModelConfig::expert_count)
      .field("num_experts_per_tok", &ModelConfig::moe_router_topk, 4)
      .written("experts_per_token", &ModelConfig::moe_router_topk)
      .join(hf_balance_rows(0.9));
}

std::unique_ptr<Model> build(const ModelConfig& config, const LayerContext& context, const ModelPart& part) {
  TransformerNames names;
  names.experts = {
      .stacked_gate_up = "gate_up_proj", .stacked_down = "down_proj", .are_interleaved = true, .router = "router"};
  return std::make_unique<Transformer>(config, names, context, part);
}

}  // namespace
}  // namespace gpt_oss

extern const ModelFamily kGptOss = {.name = "gpt_oss",
                                    .hf_model_type = "gpt_oss",
                                    .hf_class = "GptOssForCausalLM",
                                    .hf_rows = gpt_oss::rows,
                                    .build = gpt_oss::build};

}  // namespace megalith
