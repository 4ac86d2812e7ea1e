#include "data/flux_data_options.h"

namespace megalith {

std::string_view name_of(VaeLatentMode mode) { return mode == VaeLatentMode::kPresampled ? "presampled" : "resample"; }

void FluxDataOptions::visit(OptionVisitor& v) {
  v.group("Pictures", {.in_toy = InToy::kMade, .read_by = kPictureModels, .acts_in = {RunCommand::kEvaluate}});
  v.field("image_size", image_size,
          "With model_type diffusion_model: width and height of the pictures that it is trained on, a multiple of 16.")
      .unit("pixels")
      .within(16, 8192);
  v.field("text_length", text_length,
          "With model_type diffusion_model: tokens of a caption, the empty ones behind it included (FLUX.1 schnell: "
          "256).")
      .unit("tokens")
      .within(1, 8192)
      .acts_in({RunCommand::kGenerate, RunCommand::kEvaluate});
  v.choice("vae_latent_mode", vae_latent_mode, {"auto", "presampled", "resample"},
           "With model_type diffusion_model: what prepared pictures must hold. presampled: latents that were drawn "
           "once. resample: mean and variance, from which each use draws anew. auto: either.");
}

}  // namespace megalith
