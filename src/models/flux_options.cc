#include "models/flux_options.h"

#include "models/model_bounds.h"

namespace megalith {

void FluxOptions::visit_flux(OptionVisitor& v) {
  v.group("Diffusion", kOfModel.of(kPictureModels));
  v.field("num_joint_layers", num_joint_layers,
          "With model_type diffusion_model: blocks that keep the text and the picture in streams of their own.")
      .within(0, kMostLayers)
      .in_toy(InToy::kMade)
      .acts_in(kWithModel | kPlan);
  v.field("num_single_layers", num_single_layers,
          "With model_type diffusion_model: blocks behind those, which read text and picture as one sequence.")
      .within(0, kMostLayers)
      .in_toy(InToy::kMade)
      .acts_in(kWithModel | kPlan);
  v.field("in_channels", in_channels,
          "With model_type diffusion_model: numbers of a token of the picture, two by two latents in one.")
      .within(1, kMostWidth)
      .toy("8");
  v.field("context_dim", context_dim, "With model_type diffusion_model: width of the text encoder's states (T5-XXL).")
      .within(1, kMostWidth)
      .toy("10");
  v.field("vec_in_dim", vec_in_dim, "With model_type diffusion_model: width of the text's pooled vector (CLIP).")
      .within(1, kMostWidth)
      .toy("6");
  v.field("model_channels", model_channels,
          "With model_type diffusion_model: sines and cosines that a timestep, and a guidance, become.")
      .within(2, kMostWidth);
  v.field("axes_dim", axes_dim,
          "With model_type diffusion_model: how many channels of a head are rotated by the text's position (always 0), "
          "by the row and by the column. Their sum is hidden_size over num_attention_heads.")
      .within(2, kMostWidth)
      .toy("2, 2, 4");
  v.field("theta", theta, "With model_type diffusion_model: base of the rotary wavelengths.").above(0);
  v.field("guidance_embed", guidance_embed,
          "With model_type diffusion_model: the model is told the strength of guidance that it is to imitate (FLUX.1 "
          "dev), where others get along without (schnell).");
  v.field("patch_size", patch_size, "With model_type diffusion_model: only 1; tokens are packed before the model.")
      .within(1, 1);
}

}  // namespace megalith
