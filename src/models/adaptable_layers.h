// The linear layers that low-rank adapters may extend.
#pragma once

#include <vector>

#include "models/model_config.h"
#include "nn/adapter_options.h"

namespace megalith {

// Every linear layer of the whole model, experts' too, except the head. Builds the model without storage.
std::vector<AdaptableLayer> adaptable_layers(const ModelConfig& architecture);

}  // namespace megalith
