// The linear layers that low-rank adapters may extend.
#pragma once

#include <vector>

#include "models/model_config.h"
#include "nn/adapter_options.h"

namespace megalith {

// Every linear layer of the whole model, experts' and the head too. Builds the model without storage.
std::vector<AdaptableLayer> adaptable_layers(const ModelConfig& architecture);

// Errors of lora.modules_to_save. The options satisfy check_lora_targets().
std::vector<UserError> check_saved_modules(const LoraOptions& options, const ModelConfig& architecture);

}  // namespace megalith
