// What model_type diffusion_model reads, from a file: for `inspect logits` and `inspect gradients`.
#pragma once

#include <string>

#include "models/model.h"

namespace megalith {

// A safetensors file with what a ModelInput of FLUX has in `more` (models/flux.h): image, text, pooled, timesteps,
// image_positions, with guidance_embed guidance, and with has_target target. UserError for what is missing or has other
// shapes.
ModelInput read_flux_input(const std::string& path, const ModelConfig& config, bool has_target, at::Device device);

}  // namespace megalith
