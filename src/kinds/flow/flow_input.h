// Reads the input of model_type diffusion_model from a file, for `inspect logits` and `inspect gradients`.
#pragma once

#include <string>

#include "models/model.h"

namespace megalith {

// A safetensors file of flux_inputs() (models/flux.h). UserError for missing tensors and wrong shapes.
ModelInput read_flux_input(const std::string& path, const ModelConfig& config, bool has_target, at::Device device);

}  // namespace megalith
