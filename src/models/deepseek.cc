// DeepSeek-V2, V2-Lite and V3: latent attention, leading dense layers, then routed and shared experts. V2 routes by a
// softmax over all experts, V3 by sigmoids and a bias that affects only selection. Files hold a prediction module after
// the last layer; as in transformers it is built only when mtp_num_layers asks for it.
// Source: DeepSeek-AI 2024, arXiv:2405.04434 and arXiv:2412.19437.
#include "core/error.h"
#include "models/families.h"
#include "models/hf_shared_rows.h"
#include "models/model_bounds.h"

namespace megalith {

namespace deepseek {
namespace {

// Groups that are all open select nothing.
bool has_groups(const ModelConfig& config) {
  const int64_t groups = config.moe_router_num_groups.value_or(1);
  return groups > 1 && config.moe_router_group_topk.value_or(groups) < groups;
}

// Groups are ranked by their two best experts.
bool judges_by_two(const ModelConfig& config) {
  return !has_groups(config) || config.moe_router_group_score == GroupScore::kTwo ||
         (config.moe_router_group_score == GroupScore::kTopSum &&
          config.moe_router_topk / *config.moe_router_group_topk == 2);
}

void read_groups(const Json& file, int64_t otherwise, int64_t open_otherwise, ModelConfig& config) {
  const int64_t groups = hf_integer(file, "n_group", otherwise, kMostExperts);
  const int64_t open = hf_integer(file, "topk_group", open_otherwise, kMostExperts);
  if (open > groups || *config.num_experts % groups != 0) {
    throw UserError(fmt::format("{}: n_group is {}, topk_group {} and n_routed_experts {}", kHfConfigFile, groups, open,
                                *config.num_experts),
                    "the file is broken: equal groups of experts, of which some are open, were expected");
  }
  if (open == groups) return;
  config.moe_router_num_groups = groups;
  config.moe_router_group_topk = open;
}

void read_groups_of_v2(const Json& file, ModelConfig& config) {
  const auto method = json_get_or<std::string>(file, "topk_method", "greedy", kHfConfigFile);
  if (method == "group_limited_greedy") {
    read_groups(file, 1, 1, config);
    config.moe_router_group_score = GroupScore::kMax;
  } else if (method != "greedy") {
    throw UserError(fmt::format("{}: topk_method is '{}'", kHfConfigFile, method),
                    "expected greedy or group_limited_greedy");
  }
}

void read_groups_of_v3(const Json& file, ModelConfig& config) {
  read_groups(file, 8, 4, config);
  // Keeps Megatron-LM's word if its rule equals the published one: older checkpoints have it.
  if (!judges_by_two(config)) config.moe_router_group_score = GroupScore::kTwo;
}

void refuse_grouped_heads(ModelConfig& config) {
  if (!config.group_query_attention) return;
  throw UserError(fmt::format("{}: num_key_value_heads is {}, num_attention_heads {}", kHfConfigFile,
                              config.num_query_groups, config.num_attention_heads),
                  "latent attention has a key and a value for every head");
}

HfRows shared_rows(const HfExpertDefaults& experts) {
  using Config = ModelConfig;
  return hf_decoder_rows()
      .fixed("attention_bias", false, "biases in latent attention are not provided")
      .only("mlp_bias", false, "biases in the MLP are not provided")
      .fixed("moe_layer_freq", 1, "layers with experts follow one another in this family")
      .only("rope_interleave", true, "rotary pairs are adjacent channels in this family")
      .then(refuse_grouped_heads)
      .written("head_dim", &Config::qk_pos_emb_head_dim)  // of the rotated part in these files
      .join(hf_latent_rope_rows())
      .always(&Config::multi_latent_attention, true)
      .always(&Config::qk_layernorm, true)
      .nullable("q_lora_rank", &Config::q_lora_rank, 1536, nullptr)
      .field("kv_lora_rank", &Config::kv_lora_rank, 512)
      .field("qk_nope_head_dim", &Config::qk_head_dim, 128)
      .field("qk_rope_head_dim", &Config::qk_pos_emb_head_dim, 64)
      .field("v_head_dim", &Config::v_head_dim, 128)
      .join(hf_experts_after_dense_rows(experts))
      .written("n_group", [](const Config& c) { return has_groups(c) ? *c.moe_router_num_groups : 1; })
      .written("topk_group", [](const Config& c) { return has_groups(c) ? *c.moe_router_group_topk : 1; })
      // transformers adds no such loss: its weight is 0.
      .always(&Config::moe_router_load_balancing_type, RouterBalancing::kSeqAuxLoss)
      .written("aux_loss_alpha", &Config::moe_aux_loss_coeff)
      .written("seq_aux", [](const Config& config) {
        return config.moe_router_load_balancing_type == RouterBalancing::kSeqAuxLoss;
      });
}

HfRows rows_of_v2() {
  return shared_rows({.num_experts = 64, .width = 1407, .num_shared = 2, .num_dense = 0})
      .fixed("scoring_func", "softmax", "sigmoid scores are DeepSeek-V3's")
      .always(&ModelConfig::moe_router_pre_softmax, true)
      .custom("topk_method", read_groups_of_v2,
              [](const ModelConfig& config) { return has_groups(config) ? "group_limited_greedy" : "greedy"; })
      .written("norm_topk_prob", false);
}

HfRows rows_of_v3() {
  return shared_rows({.num_experts = 256, .width = 2048, .num_shared = 1, .num_dense = 3, .scaling = 2.5})
      .fixed("scoring_func", "sigmoid", "softmax scores are DeepSeek-V2's")
      .fixed("topk_method", "noaux_tc", "this family chooses with a bias")
      .fixed("norm_topk_prob", true, "the weights of the chosen are divided by their sum")
      .fixed("rope_interleave", true, "rotary pairs are adjacent channels in this family")
      .field("max_position_embeddings", &ModelConfig::max_position_embeddings, 4096)
      .always(&ModelConfig::moe_router_score_function, RouterScore::kSigmoid)
      .always(&ModelConfig::moe_router_enable_expert_bias, true)
      .then(refuse_single_expert)
      .custom("", read_groups_of_v3)
      .written("num_nextn_predict_layers", &ModelConfig::num_prediction_modules);
}

}  // namespace
}  // namespace deepseek

extern const ModelFamily kDeepseekV2 = {.name = "deepseek_v2",
                                        .hf_model_type = "deepseek_v2",
                                        .hf_class = "DeepseekV2ForCausalLM",
                                        .hf_rows = deepseek::rows_of_v2};
extern const ModelFamily kDeepseekV3 = {.name = "deepseek_v3",
                                        .hf_model_type = "deepseek_v3",
                                        .hf_class = "DeepseekV3ForCausalLM",
                                        .hf_rows = deepseek::rows_of_v3};

}  // namespace megalith
