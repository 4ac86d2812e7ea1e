// The options that change what a model's weights mean, each in one canonical form.
#pragma once

#include "config/record.h"
#include "models/model_config.h"

namespace megalith {

// Resets options that the model's type does not read.
ModelConfig as_read(ModelConfig config);

// Everything that the weights' shapes and meaning depend on, defaults filled in: models with equal architectures can
// exchange weights. Excludes dropout, initialisation, padding and the like. Stored in checkpoints, so its form must not
// change.
Configuration architecture_of(const ModelConfig& config);

// Likewise, with options that others make meaningless reset (the form of GELU beside swiglu): equal for any two models
// that compute the same. Requires a config that satisfies check_model_config().
Configuration meaning_of(const ModelConfig& config);

}  // namespace megalith
