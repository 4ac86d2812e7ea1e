// Mixtral 8x7B and 8x22B: Llama with experts in every layer, weights by a softmax over the chosen.
// Source: Jiang et al. 2024, arXiv:2401.04088.
#include "core/error.h"
#include "models/families.h"
#include "models/hf_shared_rows.h"
#include "models/transformer.h"

namespace megalith {

namespace mixtral {
namespace {

// Also refuses all-open groups: their checkpoints have gpt's tensor names.
int64_t ungrouped_experts(const ModelConfig& config) {
  if (config.moe_router_num_groups.value_or(1) <= 1) return config.expert_count();
  throw UserError(
      fmt::format("moe_router_num_groups {} has no form in {}", *config.moe_router_num_groups, kHfConfigFile),
      "leave groups of experts out");
}

HfRows rows() {
  return hf_decoder_rows()
      .fixed("router_jitter_noise", 0.0, "noise on the experts' input is not provided")
      .field("max_position_embeddings", &ModelConfig::max_position_embeddings, 4096 * 32)
      .join(hf_window_rows(std::nullopt))
      .field("num_local_experts", &ModelConfig::num_experts, 8, ungrouped_experts)
      .field("num_experts_per_tok", &ModelConfig::moe_router_topk, 2)
      .join(hf_balance_rows(0.001));
}

std::unique_ptr<Model> build(const ModelConfig& config, const LayerContext& context, const ModelPart& part) {
  TransformerNames names;
  names.layer.mlp = "block_sparse_moe";
  names.experts = {.gate = "w1", .up = "w3", .down = "w2"};
  return std::make_unique<Transformer>(config, names, context, part);
}

}  // namespace
}  // namespace mixtral

extern const ModelFamily kMixtral = {.name = "mixtral",
                                     .hf_model_type = "mixtral",
                                     .hf_class = "MixtralForCausalLM",
                                     .hf_rows = mixtral::rows,
                                     .build = mixtral::build};

}  // namespace megalith
