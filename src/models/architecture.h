// What the weights of a model mean: the options that change it, each written in one way.
#pragma once

#include "config/record.h"
#include "models/model_config.h"

namespace megalith {

// Options that a model of its type does not read get their defaults.
ModelConfig as_read(ModelConfig config);

// What the shapes and the meaning of the weights depend on, defaults filled in: two models with the same architecture
// can exchange weights. Dropouts, initialisation, padding and the like are left out. Checkpoints hold it, so what it
// says of a model stays as it is.
Configuration architecture_of(const ModelConfig& config);

// The same, and nothing of options that others make meaningless, such as the form of GELU beside swiglu: two models
// that compute the same agree in it, however they were written. The config must satisfy check_model_config().
Configuration meaning_of(const ModelConfig& config);

}  // namespace megalith
