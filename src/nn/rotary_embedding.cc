#include "nn/rotary_embedding.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/error.h"

namespace megalith {

namespace {

// base^(2i/r)
at::Tensor rotary_powers(int64_t dim, double base) {
  MEGALITH_CHECK(dim > 0 && dim % 2 == 0, "{} rotated channels", dim);
  const at::Tensor exponent = at::arange(0, dim, 2, at::kLong).to(at::kFloat) / static_cast<double>(dim);
  return at::pow(at::Scalar(base), exponent);
}

struct Yarn {
  double factor, original, beta_fast, beta_slow;
  bool truncates = true;
};

at::Tensor yarn_frequencies(int64_t dim, double base, const Yarn& yarn) {
  const at::Tensor powers = rotary_powers(dim, base);
  const auto channels = static_cast<double>(dim);
  // The (fractional) channel that makes `turns` turns in the original length.
  const auto channel_of = [&](double turns) {
    return channels * std::log(yarn.original / (turns * 2 * std::numbers::pi)) / (2 * std::log(base));
  };
  double low = channel_of(yarn.beta_fast), high = channel_of(yarn.beta_slow);
  if (yarn.truncates) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0);
  high = std::min(high, channels - 1);
  if (low == high) high += 0.001;
  const at::Tensor ramp = ((at::arange(dim / 2, at::kFloat) - low) / (high - low)).clamp(0, 1);
  const at::Tensor kept = 1 - ramp;
  return 1.0 / (yarn.factor * powers) * (1 - kept) + 1.0 / powers * kept;
}

}  // namespace

at::Tensor rotary_inverse_frequencies(int64_t dim, const RotaryOptions& options) {
  const at::Tensor inv_freq = 1.0 / rotary_powers(dim, options.rotary_base);
  if (!options.use_rope_scaling) return inv_freq / options.rotary_seq_len_interpolation_factor;
  if (options.rope_scaling_type == RopeScalingType::kYarn) {
    return yarn_frequencies(dim, options.rotary_base,
                            {.factor = options.rope_scaling_factor,
                             .original = static_cast<double>(options.rope_scaling_original_max_position_embeddings),
                             .beta_fast = options.rope_scaling_beta_fast,
                             .beta_slow = options.rope_scaling_beta_slow,
                             .truncates = options.rope_scaling_truncate});
  }
  const double factor = options.rope_scaling_factor, low = options.rope_scaling_low_freq_factor,
               high = options.rope_scaling_high_freq_factor;
  const auto original = static_cast<double>(options.rope_scaling_original_max_position_embeddings);
  const at::Tensor wavelength = 2 * std::numbers::pi / inv_freq;
  const at::Tensor is_long = wavelength > original / low;
  const at::Tensor is_short = wavelength < original / high;
  const at::Tensor stretched = at::where(is_long, inv_freq / factor, inv_freq);
  if (low == high) return stretched;  // nothing to blend (Llama 4 Scout)
  const at::Tensor blend = (original / wavelength - low) / (high - low);
  const at::Tensor blended = (1 - blend) * stretched / factor + blend * stretched;
  return at::where(is_long.logical_or(is_short), stretched, blended);
}

at::Tensor rotary_inverse_frequencies(int64_t dim, double base, const YarnOptions& options) {
  if (!options.has_yarn()) return 1.0 / rotary_powers(dim, base);
  return yarn_frequencies(dim, base,
                          {.factor = options.rotary_scaling_factor,
                           .original = static_cast<double>(options.original_max_position_embeddings),
                           .beta_fast = options.beta_fast,
                           .beta_slow = options.beta_slow});
}

double rotary_multiplier(const YarnOptions& options) {
  if (!options.has_yarn()) return 1;
  const double factor = options.rotary_scaling_factor;
  if (options.mscale == 0 || options.mscale_all_dim == 0) return yarn_mscale(factor, 1);
  return yarn_mscale(factor, options.mscale) / yarn_mscale(factor, options.mscale_all_dim);
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
