#include "models/expert_reports.h"

#include <ATen/ATen.h>

#include "comm/groups.h"
#include "nn/expert_balance.h"
#include "nn/expert_router.h"

namespace megalith {
namespace {

const char* balance_loss_name(const ModelConfig& config) {
  switch (config.moe_router_load_balancing_type) {
    case RouterBalancing::kSeqAuxLoss:
      return "seq_load_balancing_loss";
    case RouterBalancing::kGlobalAuxLoss:
      return "global_load_balancing_loss";
    default:
      return "load_balancing_loss";
  }
}

void add_terms(const ModelConfig& config, const Group& cp, const ExpertRecords& records, ModelOutput& output) {
  const double share = 1.0 / cp.size();
  const auto add = [&](const char* name, const at::Tensor& value) {
    if (value.defined()) {
      output.terms.push_back(
          {.name = name, .sum = value * share, .weight = at::full_like(value, share), .objective = {}});
    }
  };
  for (const auto& [layer, record] : records) {
    add(balance_loss_name(config), record.balance_loss);
    add("z_loss", record.z_loss);
  }
}

}  // namespace

std::vector<std::string> expert_loss_names(const ModelConfig& config) {
  std::vector<std::string> names;
  if (!config.has_experts()) return names;
  if (has_balance_loss(config)) names.emplace_back(balance_loss_name(config));
  if (config.moe_z_loss_coeff.value_or(0) > 0) names.emplace_back("z_loss");
  return names;
}

// Each tp rank routes its own tokens.
std::vector<ObservationSpec> expert_observations(const ModelConfig& config, int64_t num_layers) {
  std::vector<ObservationSpec> specs;
  if (!config.has_experts()) return specs;
  const AxisSet axes = {Axis::kTp, Axis::kCp, Axis::kDp, Axis::kPp};
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    if (!config.has_experts_at(layer)) continue;
    specs.push_back({.name = std::string(kExpertTokens), .layer = layer, .size = *config.num_experts, .axes = axes});
    if (config.has_capacity()) {
      specs.push_back({.name = std::string(kExpertsDropped), .layer = layer, .axes = axes});
    }
  }
  return specs;
}

void report_experts(const ModelConfig& config, const Group& cp, const ExpertRecords& records, HeadOutput head,
                    ModelOutput& output) {
  for (const auto& [layer, record] : records) {
    output.observations.push_back({std::string(kExpertTokens), layer, record.counts});
    if (!record.num_dropped.defined()) continue;
    output.observations.push_back({std::string(kExpertsDropped), layer, record.num_dropped.reshape({1})});
  }
  if (head == HeadOutput::kLoss) add_terms(config, cp, records, output);
}

void move_expert_biases(const ModelConfig& config, const std::map<int64_t, ExpertRouter*>& routers,
                        const std::vector<ObservedTensor>& observed, const at::Tensor& is_made) {
  if (!config.moe_router_enable_expert_bias) return;
  for (const ObservedTensor& one : observed) {
    const auto router = routers.find(one.spec->layer);
    if (one.spec->name != kExpertTokens || router == routers.end()) continue;
    // Zero counts are equal counts, which leave the biases unchanged.
    const at::Tensor counts = is_made.defined() ? one.values * is_made.to(one.values.device()) : one.values;
    update_expert_bias(*router->second->expert_bias(), counts, config.moe_router_bias_update_rate);
  }
}

}  // namespace megalith
