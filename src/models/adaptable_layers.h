// The linear layers of a model that low-rank adapters may stand beside.
#pragma once

#include <vector>

#include "models/model_config.h"
#include "nn/adapter_options.h"

namespace megalith {

// All of the whole model, experts' too, but the head, which is no linear layer here. The model is built without
// storage.
std::vector<AdaptableLayer> adaptable_layers(const ModelConfig& architecture);

}  // namespace megalith
