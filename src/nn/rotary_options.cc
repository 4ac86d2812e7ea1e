#include "nn/rotary_options.h"

#include <cmath>

#include "nn/option_rules.h"

namespace megalith {

void RotaryOptions::visit_rotary(OptionVisitor& v) {
  v.field("rotary_base", rotary_base, "Base of the rotary wavelengths (rope_theta).").above(0);
  v.field("rotary_percent", rotary_percent, "Share of a head's channels that are rotated.").above(0).at_most(1);
  v.field("rotary_seq_len_interpolation_factor", rotary_seq_len_interpolation_factor,
          "Stretch all rotary wavelengths by this factor (linear scaling), instead of only the long ones.")
      .above(0);
  v.field("rotary_interleaved", rotary_interleaved,
          "Rotate channel pairs (2i, 2i+1), as Meta's files do, instead of (i, i+r/2), as Hugging Face's do.")
      .always(kPictureModels, "true");
  v.field("use_rope_scaling", use_rope_scaling, "Stretch long rotary wavelengths by the rule of rope_scaling_type.");
  v.choice("rope_scaling_type", rope_scaling_type, {"llama3", "yarn"},
           "Rule by which use_rope_scaling stretches: llama3 is Llama 3.1's, yarn is YaRN's (OLMo 3). Latent attention "
           "has options of its own.");
  v.field("rope_scaling_factor", rope_scaling_factor, "Factor by which long rotary wavelengths are stretched.")
      .above(0);
  v.field("rope_scaling_low_freq_factor", rope_scaling_low_freq_factor,
          "Wavelengths longer than the original length divided by this are stretched by the whole factor.")
      .above(0);
  v.field("rope_scaling_high_freq_factor", rope_scaling_high_freq_factor,
          "Wavelengths shorter than the original length divided by this stay as they are.")
      .above(0);
  v.field("rope_scaling_original_max_position_embeddings", rope_scaling_original_max_position_embeddings,
          "Longest sequence of the model before its wavelengths were stretched.")
      .unit("tokens")
      .within(1, kMostPositions);
  v.field(
       "rope_scaling_beta_fast", rope_scaling_beta_fast,
       "rope_scaling_type yarn: frequencies that turn more often than this over the original length stay as they are.")
      .above(0);
  v.field(
       "rope_scaling_beta_slow", rope_scaling_beta_slow,
       "rope_scaling_type yarn: frequencies that turn less often than this over the original length are stretched by "
       "the whole factor.")
      .above(0);
  v.field("rope_scaling_truncate", rope_scaling_truncate,
          "rope_scaling_type yarn: let the blend between both begin and end at whole channels.");
  v.field(
       "rope_scaling_attention_factor", rope_scaling_attention_factor,
       "rope_scaling_type yarn: what the rotary tables are multiplied with. Default: 0.1 ln(rope_scaling_factor) + 1.")
      .above(0);
}

double RotaryOptions::rope_scaling_multiplier() const {
  if (!use_rope_scaling || rope_scaling_type != RopeScalingType::kYarn) return 1;
  return rope_scaling_attention_factor.value_or(yarn_mscale(rope_scaling_factor, 1));
}

void check_rotary(const RotaryOptions& options, std::vector<UserError>& errors) {
  if (!options.use_rope_scaling) return;
  if (options.rope_scaling_type == RopeScalingType::kYarn) {
    if (options.rope_scaling_beta_fast > options.rope_scaling_beta_slow) return;
    errors.emplace_back(fmt::format("rope_scaling_beta_fast {} is not above rope_scaling_beta_slow {}",
                                    options.rope_scaling_beta_fast, options.rope_scaling_beta_slow),
                        "YaRN uses 32 and 1");
  } else if (options.rope_scaling_high_freq_factor < options.rope_scaling_low_freq_factor) {
    errors.emplace_back(fmt::format("rope_scaling_high_freq_factor {} is below rope_scaling_low_freq_factor {}",
                                    options.rope_scaling_high_freq_factor, options.rope_scaling_low_freq_factor),
                        "Llama 3.1 uses 4 and 1");
  }
  if (options.use_rope_scaling && options.rotary_seq_len_interpolation_factor != 1) {
    errors.emplace_back(
        fmt::format("rotary_seq_len_interpolation_factor {} stretches all wavelengths, and use_rope_scaling the long "
                    "ones",
                    options.rotary_seq_len_interpolation_factor),
        "keep one of them");
  }
}

RotaryOptions RotaryOptions::local(double base) const {
  RotaryOptions options = *this;
  options.rotary_base = base;
  options.use_rope_scaling = false;
  options.rotary_seq_len_interpolation_factor = 1;
  return options;
}

void YarnOptions::visit_yarn(OptionVisitor& v) {
  v.choice("rope_type", rope_type, {"rope", "yarn"},
           "Rotary frequencies of latent attention: rope leaves them as they are, yarn stretches them by YaRN's rule.");
  v.field("rotary_scaling_factor", rotary_scaling_factor, "YaRN: how many times the sequence length is stretched.")
      .at_least(1);
  v.field("mscale", mscale, "YaRN: how strongly the rotary tables are scaled.").at_least(0);
  v.field("mscale_all_dim", mscale_all_dim, "YaRN: how strongly the softmax is scaled.").at_least(0);
  v.field("beta_fast", beta_fast,
          "YaRN: frequencies that turn more often than this over the original length stay as they are.")
      .above(0);
  v.field("beta_slow", beta_slow,
          "YaRN: frequencies that turn less often than this over the original length are stretched fully.")
      .above(0);
  v.field("original_max_position_embeddings", original_max_position_embeddings,
          "YaRN: the sequence length before stretching.")
      .unit("tokens")
      .within(1, kMostPositions);
}

double yarn_mscale(double scale, double m) { return scale <= 1 ? 1 : 0.1 * m * std::log(scale) + 1; }

double YarnOptions::softmax_factor() const {
  const double scale = yarn_mscale(rotary_scaling_factor, mscale_all_dim);
  return scale * scale;
}

}  // namespace megalith
