// Qwen3, mixture of experts: Qwen3 with experts in all layers or some, weights by a softmax over all experts,
// optionally normalised over the chosen. Source: Qwen team 2025, arXiv:2505.09388.
#include <algorithm>

#include "models/families.h"
#include "models/hf_shared_rows.h"
#include "models/layer_pattern.h"
#include "models/model_bounds.h"

namespace megalith {

namespace qwen3_moe {
namespace {

// Experts in every step-th layer, from the step-th, except those in mlp_only_layers.
void read_layers(const Json& file, ModelConfig& config) {
  const int64_t step = hf_integer(file, "decoder_sparse_step", 1, kMostLayers);
  const auto dense = json_get_or<std::vector<int64_t>>(file, "mlp_only_layers", {}, kHfConfigFile);
  std::string list;
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    const bool has_experts = (layer + 1) % step == 0 && std::ranges::find(dense, layer) == dense.end();
    list += fmt::format("{}{}", list.empty() ? "" : ",", has_experts ? 1 : 0);
  }
  config.moe_layer_freq = normalised_moe_layer_freq(fmt::format("[{}]", list), config.num_layers);
}

Json dense_layers(const ModelConfig& config) {
  Json dense = Json::array();
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    if (!config.has_experts_at(layer)) dense.push_back(layer);
  }
  return dense;
}

void read_window(const Json& file, ModelConfig& config) {
  check_hf_layer_types(file, {"sliding_attention"});
  if (json_get_or<bool>(file, "use_sliding_window", false, kHfConfigFile)) read_hf_window(file, 4096, config);
}

HfRows rows() {
  return hf_decoder_rows()
      .fixed("attention_bias", false, "biases in Qwen3's attention are not provided")
      .field("max_position_embeddings", &ModelConfig::max_position_embeddings, 32768)
      .custom("layer_types", read_window)
      .written("use_sliding_window", &ModelConfig::has_windows)  // the window may apply to no layer
      .written("sliding_window", written_hf_window)
      .always(&ModelConfig::qk_layernorm, true)
      .field("num_experts", &ModelConfig::num_experts, 128, &ModelConfig::expert_count)
      .field("num_experts_per_tok", &ModelConfig::moe_router_topk, 8)
      .field("moe_intermediate_size", &ModelConfig::moe_ffn_hidden_size, 768, &ModelConfig::expert_ffn_size)
      .custom("mlp_only_layers", read_layers, dense_layers)
      .written("decoder_sparse_step", 1)
      .opposite("norm_topk_prob", &ModelConfig::moe_router_pre_softmax, false)
      .join(hf_balance_rows(0.001));
}

}  // namespace
}  // namespace qwen3_moe

extern const ModelFamily kQwen3Moe = {.name = "qwen3_moe",
                                      .hf_model_type = "qwen3_moe",
                                      .hf_class = "Qwen3MoeForCausalLM",
                                      .hf_rows = qwen3_moe::rows};

}  // namespace megalith
