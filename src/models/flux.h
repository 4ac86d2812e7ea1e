// The chunk of FLUX that a pipeline stage holds: a transformer that reads the packed tokens of a noisy picture and of a
// text, and tells the way from picture to noise (the velocity). Names are diffusers' (FluxTransformer2DModel).
//
//   embedding      gives image (b n, h), text (b l, h), vec (b, h)
//   joint blocks   read and give image and text
//   single blocks  read and give hidden (b (l + n), h); the first one joins the streams
//   head           reads hidden and vec
//
// Under sequence parallelism image, text and hidden are this rank's tokens of every sample (nn/flux_block.h), and vec
// is whole.
//
// A ModelInput has context.b samples, context.s = n tokens of the picture and context.encoder_s = l of the text, and in
// `more` what is declared below. Floating-point tensors of other dtypes are cast.
//
// kLoss: the term is the sum over samples of the mean squared error of a sample's numbers, its weight the samples, and
// behind it "timestep", the sum of the shares of noise, which is only measured. kLogits: ModelOutput::logits
// (b, n, in_channels). Source: Black Forest Labs, FLUX.1; Liu et al. 2022, arXiv:2209.03003 (rectified flow).
#pragma once

#include <memory>
#include <vector>

#include "models/input_spec.h"
#include "models/model.h"
#include "nn/rotary_embedding.h"

namespace megalith {

namespace input {
// The first chunk's: the noisy picture, states of the text, the text's vector, the share of noise (0 to 1; for kLoss
// the last chunk's, too), and with guidance_embed the guidance.
inline constexpr InputSpec kImage{
    "image", {InputSize::kRows, InputSize::kTokens, &ModelConfig::in_channels}, at::kFloat, /*is_split=*/true};
inline constexpr InputSpec kText{
    "text", {InputSize::kRows, InputSize::kEncoderTokens, &ModelConfig::context_dim}, at::kFloat, /*is_split=*/true};
inline constexpr InputSpec kPooledText{"pooled", {InputSize::kRows, &ModelConfig::vec_in_dim}, at::kFloat};
inline constexpr InputSpec kTimesteps{"timesteps", {InputSize::kRows}, at::kFloat};
inline constexpr InputSpec kGuidance{"guidance", {InputSize::kRows}, at::kFloat};
// For blocks: (0, row, column) of each token.
inline constexpr InputSpec kImagePositions{"image_positions", {InputSize::kTokens, 3}};
// The last chunk's, for kLoss: noise - picture.
inline constexpr InputSpec kTarget{
    "target", {InputSize::kRows, InputSize::kTokens, &ModelConfig::in_channels}, at::kFloat, /*is_split=*/true};
}  // namespace input
// Of the whole model; has_target: for kLoss.
std::vector<InputSpec> flux_inputs(const ModelConfig& config, bool has_target);

inline constexpr const char *kFluxEmbeddingUnit = "flux embedding", *kFluxJointUnit = "joint block",
                            *kFluxSingleUnit = "single block", *kFluxHeadUnit = "flux head";
inline constexpr const char* kTimestepTerm = "timestep";

std::vector<Unit> flux_units(const ModelConfig& config);

// cos and sin (1, s, sum of axes_dim / 2) of these positions (s, axes) int64, fp32 (fp64 for an fp64 model): angles in
// fp64, one axis' behind the other's.
RotaryAngles flux_angles(const at::Tensor& positions, const FluxOptions& options, at::ScalarType dtype);

// UserError when context-parallel ranks share a sequence.
std::unique_ptr<Model> build_flux(const ModelConfig& config, const LayerContext& context, const ModelPart& part);

}  // namespace megalith
