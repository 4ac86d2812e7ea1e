// The rules of model_type diffusion_model.
#pragma once

#include <vector>

#include "core/error.h"
#include "models/model_config.h"

namespace megalith {

// Adds what is wrong with the architecture; the sizes are within their bounds.
void check_flux_config(const ModelConfig& config, std::vector<UserError>& errors);

}  // namespace megalith
