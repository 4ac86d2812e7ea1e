// Mixtral 8x7B and 8x22B: Llama with a mixture of experts in every layer, weights by a softmax over the chosen.
// Source: Jiang et al. 2024, arXiv:2401.04088.
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json.h"
#include "models/families.h"
#include "models/hf_config.h"
#include "models/transformer.h"

namespace megalith {

namespace mixtral {
namespace {

ModelConfig from_hf(const nlohmann::json& json) {
  refuse_unless(json, "router_jitter_noise", 0.0, "noise on the experts' input is not provided");
  ModelConfig config = read_hf_decoder(json, {.max_position_embeddings = 4096 * 32});
  read_hf_window(json, std::nullopt, config);
  config.num_experts = json_get_or<int64_t>(json, "num_local_experts", 8, kHfConfigFile);
  config.moe_router_topk = json_get_or<int64_t>(json, "num_experts_per_tok", 2, kHfConfigFile);
  if (*config.num_experts < 1 || config.moe_router_topk < 1) {
    throw UserError(fmt::format("{}: num_local_experts is {} and num_experts_per_tok {}, expected at least 1",
                                kHfConfigFile, *config.num_experts, config.moe_router_topk),
                    "the file is broken");
  }
  // Only where the class would add the loss. It sums over layers and choices: its balanced value is k, Megatron's is 1.
  if (json_get_or<bool>(json, "output_router_logits", false, kHfConfigFile)) {
    config.moe_aux_loss_coeff = json_get_or<double>(json, "router_aux_loss_coef", 0.001, kHfConfigFile);
  }
  return config;
}

nlohmann::json to_hf(const ModelConfig& config, at::ScalarType dtype) {
  // Also of groups that are all open: checkpoints of such models have the tensor names of gpt.
  if (config.moe_router_num_groups.value_or(1) > 1) {
    throw UserError(
        fmt::format("moe_router_num_groups {} has no form in {}", *config.moe_router_num_groups, kHfConfigFile),
        "leave groups of experts out");
  }
  nlohmann::json json = write_hf_decoder(config, dtype);
  json["architectures"] = {"MixtralForCausalLM"};
  json["model_type"] = "mixtral";
  json["num_local_experts"] = config.num_experts.value_or(0);
  json["num_experts_per_tok"] = config.moe_router_topk;
  json["output_router_logits"] = false;
  json["router_aux_loss_coef"] = config.moe_aux_loss_coeff;
  json["router_jitter_noise"] = 0.0;
  json["sliding_window"] = nullptr;
  if (config.has_windows()) json["sliding_window"] = config.attention_window();
  return json;
}

std::unique_ptr<Model> build(const ModelConfig& config, const LayerContext& context, const ModelPart& part) {
  TransformerNames names;
  names.layer.mlp = "block_sparse_moe";
  names.experts = {.gate = "w1", .up = "w3", .down = "w2"};
  return std::make_unique<Transformer>(config, names, context, part);
}

}  // namespace
}  // namespace mixtral

extern const ModelFamily kMixtral;
const ModelFamily kMixtral = {.name = "mixtral",
                              .hf_model_type = "mixtral",
                              .hf_class = "MixtralForCausalLM",
                              .from_hf = mixtral::from_hf,
                              .to_hf = mixtral::to_hf,
                              .units = transformer_units,
                              .build = mixtral::build};

}  // namespace megalith
