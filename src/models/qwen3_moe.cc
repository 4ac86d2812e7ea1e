// Qwen3, mixture of experts: Qwen3 with experts in all layers or some, weights by a softmax over all of them that may
// be divided by the sum of the chosen. Source: Qwen team 2025, arXiv:2505.09388.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json.h"
#include "models/families.h"
#include "models/hf_config.h"
#include "models/layer_pattern.h"
#include "models/transformer.h"

namespace megalith {

namespace qwen3_moe {
namespace {

// Every step-th layer has experts, the first of them being the step-th, apart from those that mlp_only_layers names.
std::string layers_with_experts(const Json& json, int64_t num_layers) {
  const auto step = json_get_or<int64_t>(json, "decoder_sparse_step", 1, kHfConfigFile);
  check_hf_sizes({step});
  std::vector<int64_t> dense;
  if (const Json* layers = find_member(json, "mlp_only_layers", kHfConfigFile)) {
    dense = json_as<std::vector<int64_t>>(*layers, fmt::format("{}: mlp_only_layers", kHfConfigFile));
  }
  std::string list;
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    const bool has_experts = (layer + 1) % step == 0 && std::ranges::find(dense, layer) == dense.end();
    list += fmt::format("{}{}", list.empty() ? "" : ",", has_experts ? 1 : 0);
  }
  return normalised_moe_layer_freq(fmt::format("[{}]", list), num_layers);
}

ModelConfig from_hf(const Json& json) {
  refuse_unless(json, "attention_bias", false, "biases in Qwen3's attention are not provided");
  ModelConfig config = read_hf_decoder(json, {.max_position_embeddings = 32768, .allows_window = true});
  if (json_get_or<bool>(json, "use_sliding_window", false, kHfConfigFile)) read_hf_window(json, 4096, config);
  config.qk_layernorm = true;
  config.num_experts = json_get_or<int64_t>(json, "num_experts", 128, kHfConfigFile);
  config.moe_router_topk = json_get_or<int64_t>(json, "num_experts_per_tok", 8, kHfConfigFile);
  config.moe_ffn_hidden_size = json_get_or<int64_t>(json, "moe_intermediate_size", 768, kHfConfigFile);
  check_hf_sizes({*config.num_experts, config.moe_router_topk, *config.moe_ffn_hidden_size});
  config.moe_layer_freq = layers_with_experts(json, config.num_layers);
  config.moe_router_pre_softmax = !json_get_or<bool>(json, "norm_topk_prob", false, kHfConfigFile);
  // Only where the class would add the loss. It sums over layers and choices: its balanced value is k, Megatron's is 1.
  if (json_get_or<bool>(json, "output_router_logits", false, kHfConfigFile)) {
    config.moe_aux_loss_coeff = json_get_or<double>(json, "router_aux_loss_coef", 0.001, kHfConfigFile);
  }
  return config;
}

Json to_hf(const ModelConfig& config, at::ScalarType dtype) {
  Json json = write_hf_decoder(config, dtype);
  Json dense = Json::array();
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    if (!config.has_experts_at(layer)) dense.push_back(layer);
  }
  const int64_t window = config.has_windows() ? config.attention_window() : 0;  // there may be one that no layer has
  json.update({
      {"architectures", {"Qwen3MoeForCausalLM"}},
      {"model_type", "qwen3_moe"},
      {"attention_bias", false},
      {"num_experts", config.num_experts.value_or(0)},
      {"num_experts_per_tok", config.moe_router_topk},
      {"moe_intermediate_size", config.expert_ffn_size()},
      {"decoder_sparse_step", 1},
      {"mlp_only_layers", std::move(dense)},
      {"norm_topk_prob", !config.moe_router_pre_softmax},
      {"output_router_logits", false},
      {"router_aux_loss_coef", config.moe_aux_loss_coeff},
      {"use_sliding_window", window > 0},
      {"sliding_window", nullptr},
  });
  if (window > 0) json["sliding_window"] = window;
  return json;
}

}  // namespace
}  // namespace qwen3_moe

extern const ModelFamily kQwen3Moe;
const ModelFamily kQwen3Moe = {.name = "qwen3_moe",
                               .hf_model_type = "qwen3_moe",
                               .hf_class = "Qwen3MoeForCausalLM",
                               .from_hf = qwen3_moe::from_hf,
                               .to_hf = qwen3_moe::to_hf,
                               .units = transformer_units,
                               .build = build_transformer};

}  // namespace megalith
