// FLUX's chunk in a pipeline stage: a transformer that reads the packed tokens of a noisy picture and of a text, and
// predicts the direction from picture to noise (the velocity). Names are diffusers' (FluxTransformer2DModel).
//
//   embedding      gives image (b n, h), text (b l, h), vec (b, h)
//   joint blocks   read and give image and text
//   single blocks  read and give hidden (b (l + n), h); the first one joins the streams
//   head           reads hidden and vec
//
// Sequence parallelism splits image, text and hidden within every sample (nn/flux_block.h); vec is whole.
//
// A ModelInput has context.b samples, context.s = n picture tokens and context.encoder_s = l text tokens, and in `more`
// the inputs declared below; floating-point ones are cast to the model's dtype.
//
// kLoss: the sum over samples of each one's mean squared error, weighted by the number of samples; then "timestep", the
// sum of noise shares, only measured. kLogits: ModelOutput::logits (b, n, in_channels). Source: Black Forest Labs,
// FLUX.1; Liu et al. 2022, arXiv:2209.03003 (rectified flow).
#pragma once

#include <memory>
#include <vector>

#include "models/input_spec.h"
#include "models/model.h"
#include "nn/rotary_embedding.h"

namespace megalith {

namespace input {
// First chunk: noisy picture, text states, text vector, share of noise (0 to 1; for kLoss also the last chunk's), and
// with guidance_embed the guidance.
inline constexpr InputSpec kImage{
    "image", {InputSize::kRows, InputSize::kTokens, &ModelConfig::in_channels}, at::kFloat, /*is_split=*/true};
inline constexpr InputSpec kText{
    "text", {InputSize::kRows, InputSize::kEncoderTokens, &ModelConfig::context_dim}, at::kFloat, /*is_split=*/true};
inline constexpr InputSpec kPooledText{"pooled", {InputSize::kRows, &ModelConfig::vec_in_dim}, at::kFloat};
inline constexpr InputSpec kTimesteps{"timesteps", {InputSize::kRows}, at::kFloat};
inline constexpr InputSpec kGuidance{"guidance", {InputSize::kRows}, at::kFloat};
// Blocks: (0, row, column) of each token.
inline constexpr InputSpec kImagePositions{"image_positions", {InputSize::kTokens, 3}};
// Last chunk, kLoss: noise - picture.
inline constexpr InputSpec kTarget{
    "target", {InputSize::kRows, InputSize::kTokens, &ModelConfig::in_channels}, at::kFloat, /*is_split=*/true};
}  // namespace input
// Of the whole model; has_target: for kLoss.
std::vector<InputSpec> flux_inputs(const ModelConfig& config, bool has_target);

inline constexpr const char *kFluxEmbeddingUnit = "flux embedding", *kFluxJointUnit = "joint block",
                            *kFluxSingleUnit = "single block", *kFluxHeadUnit = "flux head";
inline constexpr const char* kTimestepTerm = "timestep";

std::vector<Unit> flux_units(const ModelConfig& config);

// cos and sin (1, s, sum of axes_dim / 2) at positions (s, axes) int64, fp32 (fp64 for an fp64 model): angles computed
// in fp64, concatenated by axis.
RotaryAngles flux_angles(const at::Tensor& positions, const FluxOptions& options, at::ScalarType dtype);

// UserError under context parallelism.
std::unique_ptr<Model> build_flux(const ModelConfig& config, const LayerContext& context, const ModelPart& part);

}  // namespace megalith
