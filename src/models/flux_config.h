// The rules of model_type diffusion_model, and what of a configuration it reads.
#pragma once

#include <vector>

#include "core/error.h"
#include "models/model_config.h"

namespace megalith {

// Everything wrong with the architecture at once; the sizes are within their bounds.
std::vector<UserError> check_flux_config(const ModelConfig& config);
// With another model_type: options of FLUX, which mean nothing there.
void check_flux_options_are_meant(const ModelConfig& config, std::vector<UserError>& errors);
// What does not divide over tp ranks; experts there are none.
std::vector<UserError> check_flux_layout(const ModelConfig& config, int64_t tp, int64_t ep);
// What it reads of the configuration, defaults filled in, and nothing else.
ModelConfig flux_architecture(const ModelConfig& config);

}  // namespace megalith
