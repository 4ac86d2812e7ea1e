#include "nn/rotary_embedding.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/error.h"

namespace megalith {

namespace {

at::Tensor llama3_frequencies(const at::Tensor& inv_freq, const RopeScaling& scaling) {
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

// powers: base^(2i/r)
at::Tensor yarn_frequencies(const at::Tensor& powers, const RotaryOptions& options) {
  const YarnScaling& scaling = *options.yarn;
  const auto dim = static_cast<double>(options.dim);
  // The channel, as a fraction, that turns so many times within the original length.
  const auto channel_of = [&](double turns) {
    const auto original = static_cast<double>(scaling.original_max_position_embeddings);
    return dim * std::log(original / (turns * 2 * std::numbers::pi)) / (2 * std::log(options.base));
  };
  const double low = std::max(std::floor(channel_of(scaling.beta_fast)), 0.0);
  double high = std::min(std::ceil(channel_of(scaling.beta_slow)), dim - 1);
  if (low == high) high += 0.001;
  const at::Tensor ramp = ((at::arange(options.dim / 2, at::kFloat) - low) / (high - low)).clamp(0, 1);
  const at::Tensor kept = 1 - ramp;
  return 1.0 / (scaling.factor * powers) * (1 - kept) + 1.0 / powers * kept;
}

}  // namespace

double yarn_mscale(double scale, double m) { return scale <= 1 ? 1 : 0.1 * m * std::log(scale) + 1; }

double rotary_multiplier(const RotaryOptions& options) {
  if (!options.yarn) return 1;
  const YarnScaling& yarn = *options.yarn;
  if (yarn.mscale == 0 || yarn.mscale_all_dim == 0) return yarn_mscale(yarn.factor, 1);
  return yarn_mscale(yarn.factor, yarn.mscale) / yarn_mscale(yarn.factor, yarn.mscale_all_dim);
}

at::Tensor rotary_inverse_frequencies(const RotaryOptions& options) {
  MEGALITH_CHECK(options.dim > 0 && options.dim % 2 == 0, "{} rotated channels", options.dim);
  MEGALITH_CHECK(!options.scaling || !options.yarn, "two rules stretch one rotary embedding");
  const at::Tensor exponent =
      at::arange(0, options.dim, 2, at::kLong).to(at::kFloat) / static_cast<double>(options.dim);
  const at::Tensor powers = at::pow(at::Scalar(options.base), exponent);
  if (options.yarn) return yarn_frequencies(powers, options);
  const at::Tensor inv_freq = 1.0 / powers;
  return options.scaling ? llama3_frequencies(inv_freq, *options.scaling) : inv_freq;
}

RotaryAngles compute_rotary_angles(const at::Tensor& position_ids, const at::Tensor& inverse_frequencies,
                                   at::ScalarType activation_dtype, double multiplier) {
  const bool rows_are_equal = position_ids.size(0) > 1 && position_ids.stride(0) == 0;
  const at::Tensor positions = rows_are_equal ? position_ids.narrow(0, 0, 1) : position_ids;
  const at::Tensor angle = positions.to(at::kFloat).unsqueeze(-1) * inverse_frequencies;
  const auto wide = activation_dtype == at::kDouble ? at::kDouble : at::kFloat;
  return {(angle.cos() * multiplier).to(wide), (angle.sin() * multiplier).to(wide)};
}

}  // namespace megalith
