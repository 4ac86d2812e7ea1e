// See adapters.h.
#include "train/adapters.h"

#include <fmt/format.h>

#include "comm/groups.h"
#include "models/families.h"
#include "nn/linear.h"

namespace megalith {
namespace {

// All linear layers of the whole model but the head, which is no Linear.
std::vector<AdaptableLayer> adaptable_layers(const ModelConfig& architecture) {
  const Groups alone = Groups::single();
  const LayerContext context{.groups = &alone, .device = at::kMeta};
  const auto model = family_for(architecture).build_whole(architecture, context);
  std::vector<AdaptableLayer> layers;
  model->for_each_module([&](const Module& module) {
    if (const auto* linear = dynamic_cast<const Linear*>(&module)) layers.push_back(linear->adaptable());
  });
  return layers;
}

}  // namespace

std::shared_ptr<const LoraOptions> adapters_of(const Config& config) {
  return config.lora.enabled ? std::make_shared<const LoraOptions>(config.lora) : nullptr;
}

std::vector<UserError> check_adapters_are_meant(const OptionSet& options) {
  std::vector<UserError> errors;
  if (options.find("lora.enabled")->is_set()) return errors;
  for (const auto& option : options.options()) {
    if (!option->name().starts_with("lora.") || !option->is_set()) continue;
    errors.emplace_back(fmt::format("{} is {}, but lora.enabled is not set: all weights would be trained",
                                    option->name(), option->text()),
                        "set lora.enabled to true, or leave it out");
    return errors;
  }
  return errors;
}

std::vector<UserError> check_adapters(const Config& config, const ModelConfig& architecture) {
  std::vector<UserError> errors;
  if (config.checkpoint.adapter && !config.checkpoint.load_hf) {
    errors.emplace_back("adapter names adapters, and no model is named that they belong to", "name it with --load_hf");
  }
  if (!config.lora.enabled || !check_lora_options(config.lora).empty()) return errors;
  if (architecture.model_type == ModelType::kBiencoder) {
    errors.emplace_back("lora.enabled with model_type biencoder, whose encoders are trained whole",
                        "leave lora.enabled out");
    return errors;
  }
  if (architecture.has_encoder() && config.lora.dropout > 0) {
    errors.emplace_back(
        fmt::format("lora.dropout is {} with model_type t5, where adapters drop nothing", config.lora.dropout),
        "set lora.dropout to 0");
  }
  for (UserError& error : check_lora_targets(config.lora, adaptable_layers(architecture))) {
    if (architecture.has_experts()) {
      error = UserError(error.message(), error.remedy() + "; experts get no adapters, only the layers around them");
    }
    errors.push_back(std::move(error));
  }
  if (config.checkpoint.save_hf) {
    errors.emplace_back("save_hf writes a whole model, and lora.enabled trains adapters beside one",
                        "name a folder for the adapters with --save_adapter");
  }
  return errors;
}

TensorsByOwner tensors_by_owner(const DataParallel& data) {
  TensorsByOwner tensors;
  const std::vector<CheckpointTensor> all = model_tensors(data);
  for (size_t i = 0; i < all.size(); ++i) {
    const bool is_adapter = data.model_parts()[i].parameter->options().is_adapter;
    (is_adapter ? tensors.adapters : tensors.base).push_back(all[i]);
  }
  return tensors;
}

}  // namespace megalith
