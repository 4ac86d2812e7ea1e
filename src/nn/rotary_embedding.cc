#include "nn/rotary_embedding.h"

#include <ATen/ATen.h>

#include <numbers>

#include "core/error.h"

namespace megalith {

at::Tensor rotary_inverse_frequencies(const RotaryOptions& options) {
  MEGALITH_CHECK(options.dim > 0 && options.dim % 2 == 0, "{} rotated channels", options.dim);
  const at::Tensor exponent =
      at::arange(0, options.dim, 2, at::kLong).to(at::kFloat) / static_cast<double>(options.dim);
  const at::Tensor inv_freq = 1.0 / at::pow(at::Scalar(options.base), exponent);
  if (!options.scaling) return inv_freq;

  const RopeScaling& scaling = *options.scaling;
  const auto original = static_cast<double>(scaling.original_max_position_embeddings);
  const at::Tensor wavelength = 2 * std::numbers::pi / inv_freq;
  const at::Tensor is_long = wavelength > original / scaling.low_freq_factor;
  const at::Tensor is_short = wavelength < original / scaling.high_freq_factor;
  const at::Tensor stretched = at::where(is_long, inv_freq / scaling.factor, inv_freq);
  const at::Tensor blend =
      (original / wavelength - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
  const at::Tensor blended = (1 - blend) * stretched / scaling.factor + blend * stretched;
  return at::where(is_long.logical_or(is_short), stretched, blended);
}

RotaryAngles compute_rotary_angles(const at::Tensor& position_ids, const at::Tensor& inverse_frequencies,
                                   at::ScalarType activation_dtype) {
  const bool rows_are_equal = position_ids.size(0) > 1 && position_ids.stride(0) == 0;
  const at::Tensor positions = rows_are_equal ? position_ids.narrow(0, 0, 1) : position_ids;
  const at::Tensor angle = positions.to(at::kFloat).unsqueeze(-1) * inverse_frequencies;
  const auto wide = activation_dtype == at::kDouble ? at::kDouble : at::kFloat;
  return {angle.cos().to(wide), angle.sin().to(wide)};
}

}  // namespace megalith
