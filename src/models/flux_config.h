// The rules of model_type diffusion_model.
#pragma once

#include <vector>

#include "core/error.h"
#include "models/model_config.h"

namespace megalith {

// Appends the architecture's errors. Sizes must be within bounds.
void check_flux_config(const ModelConfig& config, std::vector<UserError>& errors);

}  // namespace megalith
