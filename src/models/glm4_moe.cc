// GLM-4.5 and GLM-4.5-Air: partial rotation, biases on queries, keys and values, head norms in the larger model;
// leading dense layers, then experts routed as in DeepSeek-V3, without groups. Files hold a prediction module after the
// last layer; as in transformers it is built only when mtp_num_layers asks for it.
// Source: GLM-4.5 team 2025, arXiv:2508.06471.
#include "core/error.h"
#include "models/families.h"
#include "models/hf_shared_rows.h"
#include "models/model_bounds.h"

namespace megalith {

namespace glm4_moe {
namespace {

void refuse_groups(const Json& file, ModelConfig& /*config*/) {
  const int64_t groups = hf_integer(file, "n_group", 1, kMostExperts);
  const int64_t open = hf_integer(file, "topk_group", 1, kMostExperts);
  if (groups == open) return;
  throw UserError(fmt::format("{}: n_group is {} and topk_group {}", kHfConfigFile, groups, open),
                  "experts of this family are in one group, as in the published files");
}

HfRows rows() {
  return hf_decoder_rows()
      .fixed("norm_topk_prob", true, "the weights of the chosen are divided by their sum")
      .field("max_position_embeddings", &ModelConfig::max_position_embeddings, 131072)
      .field("rms_norm_eps", &ModelConfig::norm_epsilon, 1e-5)
      .field("partial_rotary_factor", &ModelConfig::rotary_percent, 0.5)
      .field("attention_bias", &ModelConfig::add_qkv_bias, false, &ModelConfig::has_qkv_bias)
      .field("use_qk_norm", &ModelConfig::qk_layernorm, false)
      .join(hf_experts_after_dense_rows({.num_experts = 128, .width = 1408, .num_shared = 1, .num_dense = 1}))
      .field("num_experts_per_tok", &ModelConfig::moe_router_topk, 8)
      .custom("n_group", refuse_groups, 1)
      .written("topk_group", 1)
      .then(refuse_single_expert)
      .always(&ModelConfig::moe_router_score_function, RouterScore::kSigmoid)
      .always(&ModelConfig::moe_router_enable_expert_bias, true)
      .written("num_nextn_predict_layers", &ModelConfig::num_prediction_modules);
}

}  // namespace
}  // namespace glm4_moe

extern const ModelFamily kGlm4Moe = {.name = "glm4_moe",
                                     .hf_model_type = "glm4_moe",
                                     .hf_class = "Glm4MoeForCausalLM",
                                     .hf_rows = glm4_moe::rows};

}  // namespace megalith
