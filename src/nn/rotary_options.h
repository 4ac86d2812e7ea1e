// Options of rotary_embedding.h.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "config/option.h"
#include "core/error.h"

namespace megalith {

enum class RopeScalingType { kLlama3, kYarn };

// use_rope_scaling, llama3: wavelengths above original / low_freq_factor are stretched by the factor, those below
// original / high_freq_factor are kept, others blended linearly. yarn: see YarnOptions.
struct RotaryOptions {
  double rotary_base = 10000;
  double rotary_percent = 1;
  double rotary_seq_len_interpolation_factor = 1;  // stretches all wavelengths
  bool rotary_interleaved = false;                 // pairs (2i, 2i + 1), not (i, i + r/2)
  bool use_rope_scaling = false;
  RopeScalingType rope_scaling_type = RopeScalingType::kLlama3;
  double rope_scaling_factor = 8;
  double rope_scaling_low_freq_factor = 1;
  double rope_scaling_high_freq_factor = 4;
  int64_t rope_scaling_original_max_position_embeddings = 8192;
  // Only for YaRN.
  double rope_scaling_beta_fast = 32, rope_scaling_beta_slow = 1;
  bool rope_scaling_truncate = true;  // blend between whole channels
  std::optional<double> rope_scaling_attention_factor;

  void visit_rotary(OptionVisitor& v);

  bool is_stretched() const { return use_rope_scaling || rotary_seq_len_interpolation_factor != 1; }
  // For local attention: nothing stretched.
  RotaryOptions local(double base) const;
  // With YaRN the attention factor, by default M(factor, 1); else 1.
  double rope_scaling_multiplier() const;

  int64_t rotated_channels(int64_t head_dim) const {
    return static_cast<int64_t>(static_cast<double>(head_dim) * rotary_percent);
  }
};

void check_rotary(const RotaryOptions& options, std::vector<UserError>& errors);

enum class RopeType { kRope, kYarn };

// For latent attention: channels with more than beta_fast turns in the original length keep their frequency, those with
// fewer than beta_slow are stretched by the factor, others blended linearly by channel.
struct YarnOptions {
  RopeType rope_type = RopeType::kYarn;
  double rotary_scaling_factor = 1;
  double mscale = 1, mscale_all_dim = 0;  // see rotary_multiplier() and softmax_factor()
  double beta_fast = 32, beta_slow = 1;
  int64_t original_max_position_embeddings = 4096;

  void visit_yarn(OptionVisitor& v);

  bool has_yarn() const { return rope_type == RopeType::kYarn && rotary_scaling_factor > 1; }
  // Scores': M(factor, mscale_all_dim)^2, for any rope_type.
  double softmax_factor() const;
};

// M(scale, m) = 0.1 m ln(scale) + 1; 1 for scales up to 1.
double yarn_mscale(double scale, double m);

}  // namespace megalith
