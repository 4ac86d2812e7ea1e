// DeepSeek-V2, V2-Lite and V3: latent attention, dense layers first, then experts with shared ones beside them. V2
// routes by a softmax over all experts, V3 by sigmoids and a bias that only chooses. Files hold a prediction module
// behind the last layer, which a configuration asks for by mtp_num_layers and not by the file, as transformers does.
// Source: DeepSeek-AI 2024, arXiv:2405.04434 and arXiv:2412.19437.
#include <nlohmann/json.hpp>

#include "core/json.h"
#include "models/families.h"
#include "models/hf_config.h"
#include "models/layer_pattern.h"
#include "models/transformer.h"

namespace megalith {

namespace deepseek {
namespace {

// Groups that are all open to a token choose nothing.
bool has_groups(const ModelConfig& config) {
  const int64_t groups = config.moe_router_num_groups.value_or(1);
  return groups > 1 && config.moe_router_group_topk.value_or(groups) < groups;
}

// A group is judged by its two best.
bool judges_by_two(const ModelConfig& config) {
  return !has_groups(config) || config.moe_router_group_score == GroupScore::kTwo ||
         (config.moe_router_group_score == GroupScore::kTopSum &&
          config.moe_router_topk / *config.moe_router_group_topk == 2);
}

// What the classes take for missing keys.
struct Defaults {
  int64_t max_position_embeddings, first_k_dense_replace, n_shared_experts, n_routed_experts, moe_intermediate_size,
      n_group, topk_group;
  double routed_scaling_factor;
};

ModelConfig read_body(const Json& json, const Defaults& defaults) {
  ModelConfig config =
      read_hf_decoder(json, {.max_position_embeddings = defaults.max_position_embeddings, .allows_yarn = true});
  if (config.use_rope_scaling) {
    throw UserError(fmt::format("{}: rotary scaling of type 'llama3', expected 'default' or 'yarn'", kHfConfigFile),
                    "this model cannot be loaded: its positions would be rotated wrongly");
  }
  const auto integer = [&](std::string_view key, int64_t otherwise) {
    return json_get_or<int64_t>(json, key, otherwise, kHfConfigFile);
  };
  if (config.group_query_attention) {
    throw UserError(fmt::format("{}: num_key_value_heads is {}, num_attention_heads {}", kHfConfigFile,
                                config.num_query_groups, config.num_attention_heads),
                    "latent attention has a key and a value for every head");
  }
  refuse_unless(json, "attention_bias", false, "biases in latent attention are not provided");
  refuse_unless(json, "mlp_bias", false, "biases in the MLP are not provided");
  refuse_unless(json, "moe_layer_freq", 1, "layers with experts follow one another in this family");
  refuse_unless(json, "rope_interleave", true, "rotary pairs are adjacent channels in this family");
  config.kv_channels.reset();  // head_dim is that of the rotated part in these files
  config.multi_latent_attention = config.qk_layernorm = true;
  const bool says_q_rank = json.contains("q_lora_rank");
  config.q_lora_rank = says_q_rank ? json_find<int64_t>(json, "q_lora_rank", kHfConfigFile) : 1536;
  config.kv_lora_rank = integer("kv_lora_rank", 512);
  config.qk_head_dim = integer("qk_nope_head_dim", 128);
  config.qk_pos_emb_head_dim = integer("qk_rope_head_dim", 64);
  config.v_head_dim = integer("v_head_dim", 128);

  config.num_experts = integer("n_routed_experts", defaults.n_routed_experts);
  config.moe_ffn_hidden_size = integer("moe_intermediate_size", defaults.moe_intermediate_size);
  config.moe_router_topk = json_get<int64_t>(json, "num_experts_per_tok", kHfConfigFile);
  const int64_t num_shared = integer("n_shared_experts", defaults.n_shared_experts);
  if (num_shared > 0) config.moe_shared_expert_intermediate_size = num_shared * *config.moe_ffn_hidden_size;
  const int64_t dense = integer("first_k_dense_replace", defaults.first_k_dense_replace);
  check_hf_sizes({config.kv_lora_rank, config.qk_head_dim, config.qk_pos_emb_head_dim, config.v_head_dim,
                  *config.num_experts, *config.moe_ffn_hidden_size, config.moe_router_topk, dense + 1, num_shared + 1,
                  config.q_lora_rank.value_or(1)});
  config.moe_layer_freq = moe_layer_freq_text(std::min(dense, config.num_layers), config.num_layers);
  config.moe_router_topk_scaling_factor =
      json_get_or<double>(json, "routed_scaling_factor", defaults.routed_scaling_factor, kHfConfigFile);
  config.moe_router_dtype = RouterPrecision::kFp32;
  config.moe_router_load_balancing_type = RouterBalancing::kSeqAuxLoss;  // transformers adds no such loss: weight 0
  return config;
}

// Where all groups are open to a token they choose nothing.
void read_groups(const Json& json, const Defaults& defaults, ModelConfig& config) {
  const auto groups = json_get_or<int64_t>(json, "n_group", defaults.n_group, kHfConfigFile);
  const auto open = json_get_or<int64_t>(json, "topk_group", defaults.topk_group, kHfConfigFile);
  if (open < 1 || open > groups || *config.num_experts % groups != 0) {
    throw UserError(fmt::format("{}: n_group is {}, topk_group {} and n_routed_experts {}", kHfConfigFile, groups, open,
                                *config.num_experts),
                    "the file is broken: equal groups of experts, of which some are open, were expected");
  }
  if (open == groups) return;
  config.moe_router_num_groups = groups;
  config.moe_router_group_topk = open;
}

ModelConfig from_hf_v2(const Json& json) {
  constexpr Defaults kDefaults{2048, 0, 2, 64, 1407, 1, 1, 1.0};
  refuse_unless(json, "scoring_func", "softmax", "sigmoid scores are DeepSeek-V3's");
  ModelConfig config = read_body(json, kDefaults);
  config.moe_router_pre_softmax = true;
  const auto method = json_get_or<std::string>(json, "topk_method", "greedy", kHfConfigFile);
  if (method == "group_limited_greedy") {
    read_groups(json, kDefaults, config);
    config.moe_router_group_score = GroupScore::kMax;
  } else if (method != "greedy") {
    throw UserError(fmt::format("{}: topk_method is '{}'", kHfConfigFile, method),
                    "expected greedy or group_limited_greedy");
  }
  return config;
}

ModelConfig from_hf_v3(const Json& json) {
  constexpr Defaults kDefaults{4096, 3, 1, 256, 2048, 8, 4, 2.5};
  refuse_unless(json, "scoring_func", "sigmoid", "softmax scores are DeepSeek-V2's");
  refuse_unless(json, "topk_method", "noaux_tc", "this family chooses with a bias");
  refuse_unless(json, "norm_topk_prob", true, "the weights of the chosen are divided by their sum");
  ModelConfig config = read_body(json, kDefaults);
  config.moe_router_score_function = RouterScore::kSigmoid;
  config.moe_router_enable_expert_bias = true;
  if (config.moe_router_topk == 1) {
    throw UserError(fmt::format("{}: num_experts_per_tok is 1", kHfConfigFile),
                    "the weight of a single expert is its score here, and 1 in Hugging Face's class");
  }
  read_groups(json, kDefaults, config);
  // Where the published rule and Megatron-LM's are one, the latter's word stays, which older checkpoints have.
  if (!judges_by_two(config)) config.moe_router_group_score = GroupScore::kTwo;
  return config;
}

Json write_body(const ModelConfig& config, at::ScalarType dtype) {
  Json json = write_hf_decoder(config, dtype);
  json["head_dim"] = config.qk_pos_emb_head_dim;
  json["rope_scaling"] = nullptr;  // Llama 3.1's rule stretches no latent head
  json.update({
      {"attention_bias", false},
      {"kv_lora_rank", config.kv_lora_rank},
      {"q_lora_rank", nullptr},
      {"qk_nope_head_dim", config.qk_head_dim},
      {"qk_rope_head_dim", config.qk_pos_emb_head_dim},
      {"v_head_dim", config.v_head_dim},
      {"first_k_dense_replace", hf_dense_layers_in_front(config)},
      {"moe_layer_freq", 1},
      {"moe_intermediate_size", config.expert_ffn_size()},
      {"n_routed_experts", config.num_experts.value_or(0)},
      {"n_shared_experts", config.shared_expert_size() / config.expert_ffn_size()},
      {"num_experts_per_tok", config.moe_router_topk},
      {"routed_scaling_factor", config.moe_router_topk_scaling_factor.value_or(1)},
      {"n_group", has_groups(config) ? *config.moe_router_num_groups : 1},
      {"topk_group", has_groups(config) ? *config.moe_router_group_topk : 1},
      {"aux_loss_alpha", config.moe_aux_loss_coeff},
      {"seq_aux", config.moe_router_load_balancing_type == RouterBalancing::kSeqAuxLoss},
  });
  if (config.q_lora_rank) json["q_lora_rank"] = *config.q_lora_rank;
  if (config.rope_type == RopeType::kYarn && config.rotary_scaling_factor > 1) {
    json["rope_scaling"] = {
        {"type", "yarn"},
        {"rope_type", "yarn"},
        {"factor", config.rotary_scaling_factor},
        {"beta_fast", config.beta_fast},
        {"beta_slow", config.beta_slow},
        {"mscale", config.mscale},
        {"mscale_all_dim", config.mscale_all_dim},
        {"original_max_position_embeddings", config.original_max_position_embeddings},
    };
  }
  return json;
}

Json to_hf_v2(const ModelConfig& config, at::ScalarType dtype) {
  Json json = write_body(config, dtype);
  json["architectures"] = {"DeepseekV2ForCausalLM"};
  json["model_type"] = "deepseek_v2";
  json["scoring_func"] = "softmax";
  json["topk_method"] = has_groups(config) ? "group_limited_greedy" : "greedy";
  json["norm_topk_prob"] = false;
  return json;
}

Json to_hf_v3(const ModelConfig& config, at::ScalarType dtype) {
  Json json = write_body(config, dtype);
  json["architectures"] = {"DeepseekV3ForCausalLM"};
  json["model_type"] = "deepseek_v3";
  json["scoring_func"] = "sigmoid";
  json["topk_method"] = "noaux_tc";
  json["norm_topk_prob"] = true;
  json["rope_interleave"] = true;
  json["num_nextn_predict_layers"] = config.num_prediction_modules();
  return json;
}

}  // namespace
}  // namespace deepseek

extern const ModelFamily kDeepseekV2, kDeepseekV3;
const ModelFamily kDeepseekV2 = {.name = "deepseek_v2",
                                 .hf_model_type = "deepseek_v2",
                                 .hf_class = "DeepseekV2ForCausalLM",
                                 .from_hf = deepseek::from_hf_v2,
                                 .to_hf = deepseek::to_hf_v2,
                                 .units = transformer_units,
                                 .build = build_transformer};
const ModelFamily kDeepseekV3 = {.name = "deepseek_v3",
                                 .hf_model_type = "deepseek_v3",
                                 .hf_class = "DeepseekV3ForCausalLM",
                                 .from_hf = deepseek::from_hf_v3,
                                 .to_hf = deepseek::to_hf_v3,
                                 .units = transformer_units,
                                 .build = build_transformer};

}  // namespace megalith
