// See adaptable_layers.h.
#include "models/adaptable_layers.h"

#include "comm/groups.h"
#include "models/families.h"
#include "nn/linear.h"
#include "nn/lm_head.h"
#include "nn/low_rank_adapter.h"
#include "nn/moe_layer.h"

namespace megalith {

std::vector<AdaptableLayer> adaptable_layers(const ModelConfig& architecture) {
  const Groups alone = Groups::single();
  const LayerContext context{.groups = &alone, .device = at::kMeta};
  const auto model = family_for(architecture).build_whole(architecture, context);
  std::vector<AdaptableLayer> layers;
  model->for_each_module([&](const Module& module) {
    if (const auto* head = dynamic_cast<const LmHead*>(&module)) layers.push_back(head->adaptable());
    if (const auto* linear = dynamic_cast<const Linear*>(&module)) layers.push_back(linear->adaptable());
    if (const auto* experts = dynamic_cast<const GroupedExperts*>(&module)) {
      layers.insert(layers.end(), experts->adaptable().begin(), experts->adaptable().end());
    }
  });
  return layers;
}

std::vector<UserError> check_saved_modules(const LoraOptions& options, const ModelConfig& architecture) {
  if (options.modules_to_save.empty()) return {};
  const Groups alone = Groups::single();
  const LayerContext context{
      .groups = &alone, .device = at::kMeta, .lora = std::make_shared<const LoraOptions>(options)};
  return check_saved_modules(options, family_for(architecture).build_whole(architecture, context)->parameters());
}

}  // namespace megalith
