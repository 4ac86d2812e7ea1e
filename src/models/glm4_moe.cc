// GLM-4.5 and GLM-4.5-Air: heads of which a part is rotated, biases on queries, keys and values, norms of heads in the
// larger model; dense layers first, then experts chosen as DeepSeek-V3 chooses them, without groups. Files hold a
// prediction module behind the last layer, which a configuration asks for by mtp_num_layers and not by the file, as
// transformers does.
// Source: GLM-4.5 team 2025, arXiv:2508.06471.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json.h"
#include "models/families.h"
#include "models/hf_config.h"
#include "models/layer_pattern.h"
#include "models/transformer.h"

namespace megalith {

namespace glm4_moe {
namespace {

ModelConfig from_hf(const Json& json) {
  refuse_unless(json, "norm_topk_prob", true, "the weights of the chosen are divided by their sum");
  ModelConfig config =
      read_hf_decoder(json, {.max_position_embeddings = 131072, .norm_epsilon = 1e-5, .partial_rotary_factor = 0.5});
  const auto integer = [&](std::string_view key, int64_t otherwise) {
    return json_get_or<int64_t>(json, key, otherwise, kHfConfigFile);
  };
  config.add_qkv_bias = json_get_or<bool>(json, "attention_bias", false, kHfConfigFile);
  config.qk_layernorm = json_get_or<bool>(json, "use_qk_norm", false, kHfConfigFile);

  config.num_experts = integer("n_routed_experts", 128);
  config.moe_ffn_hidden_size = integer("moe_intermediate_size", 1408);
  config.moe_router_topk = integer("num_experts_per_tok", 8);
  const int64_t num_shared = integer("n_shared_experts", 1), dense = integer("first_k_dense_replace", 1);
  check_hf_sizes({*config.num_experts, *config.moe_ffn_hidden_size, config.moe_router_topk, dense + 1, num_shared + 1});
  if (num_shared > 0) config.moe_shared_expert_intermediate_size = num_shared * *config.moe_ffn_hidden_size;
  config.moe_layer_freq = moe_layer_freq_text(std::min(dense, config.num_layers), config.num_layers);
  if (integer("n_group", 1) != integer("topk_group", 1)) {
    throw UserError(fmt::format("{}: n_group is {} and topk_group {}", kHfConfigFile, integer("n_group", 1),
                                integer("topk_group", 1)),
                    "experts of this family are in one group, as in the published files");
  }
  if (config.moe_router_topk == 1) {
    throw UserError(fmt::format("{}: num_experts_per_tok is 1", kHfConfigFile),
                    "the weight of a single expert is its score here, and 1 in Hugging Face's class");
  }
  config.moe_router_score_function = RouterScore::kSigmoid;
  config.moe_router_enable_expert_bias = true;
  config.moe_router_topk_scaling_factor = json_get_or<double>(json, "routed_scaling_factor", 1, kHfConfigFile);
  config.moe_router_dtype = RouterPrecision::kFp32;
  return config;
}

Json to_hf(const ModelConfig& config, at::ScalarType dtype) {
  ModelConfig rotated_whole = config;
  rotated_whole.rotary_percent = 1;
  Json json = write_hf_decoder(rotated_whole, dtype);
  json.update({
      {"architectures", {"Glm4MoeForCausalLM"}},
      {"model_type", "glm4_moe"},
      {"partial_rotary_factor", config.rotary_percent},
      {"attention_bias", config.has_qkv_bias()},
      {"use_qk_norm", config.qk_layernorm},
      {"first_k_dense_replace", hf_dense_layers_in_front(config)},
      {"moe_intermediate_size", config.expert_ffn_size()},
      {"n_routed_experts", config.num_experts.value_or(0)},
      {"n_shared_experts", config.shared_expert_size() / config.expert_ffn_size()},
      {"num_experts_per_tok", config.moe_router_topk},
      {"routed_scaling_factor", config.moe_router_topk_scaling_factor.value_or(1)},
      {"norm_topk_prob", true},
      {"n_group", 1},
      {"topk_group", 1},
      {"num_nextn_predict_layers", config.num_prediction_modules()},
  });
  return json;
}

}  // namespace
}  // namespace glm4_moe

extern const ModelFamily kGlm4Moe;
const ModelFamily kGlm4Moe = {.name = "glm4_moe",
                              .hf_model_type = "glm4_moe",
                              .hf_class = "Glm4MoeForCausalLM",
                              .from_hf = glm4_moe::from_hf,
                              .to_hf = glm4_moe::to_hf,
                              .units = transformer_units,
                              .build = build_transformer};

}  // namespace megalith
