// The fields of encoded pictures with captions, for training FLUX: b rows, latents of h x w with c channels (of 8 x 8
// pixels each), l tokens of text.
#pragma once

#include <cstdint>
#include <string_view>

namespace megalith {

namespace field {

// (b, c, h, w) fp32: latents, scaled as the model reads them. With kLatentLogVars the unscaled mean of their
// distribution: a sample is drawn at every use.
inline constexpr std::string_view kLatents = "latents";
// (b, c, h, w) fp32: logarithms of that distribution's variances.
inline constexpr std::string_view kLatentLogVars = "latent_log_vars";
// (2) fp64, with kLatentLogVars: scale and shift of the sample, z = (sample - shift) * scale.
inline constexpr std::string_view kLatentScale = "latent_scale";
// (b, l, context_dim) bf16 or fp32: T5's states of the caption.
inline constexpr std::string_view kTextStates = "text_states";
// (b, vec_in_dim) bf16 or fp32: CLIP's pooled vector of the caption.
inline constexpr std::string_view kPooledText = "pooled_text";
// (l, context_dim) and (vec_in_dim): of an empty caption, common to all rows.
inline constexpr std::string_view kEmptyTextStates = "empty_text_states";
inline constexpr std::string_view kEmptyPooledText = "empty_pooled_text";
// (b) fp32: fixed shares of noise, for validation rows. Absent: drawn.
inline constexpr std::string_view kFixedTimesteps = "fixed_timesteps";

}  // namespace field

// Shapes of a sample.
struct FluxSampleShape {
  int64_t latent_channels = 16, context_dim = 4096, vec_in_dim = 768;
  int64_t image_size = 512, text_length = 512;  // pixels of a side, tokens of a caption
};

}  // namespace megalith
