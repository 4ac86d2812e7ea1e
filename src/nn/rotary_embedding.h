// Angles of the rotary position embedding, with Llama 3.1's and YaRN's stretching of long wavelengths.
//
//   inv_freq[i] = base^(-2i/r), i < r/2;   angle = position * inv_freq[i]
//
// In float32 throughout and in Hugging Face's order of operations, so that the tables agree to the bit.
// Source: Su et al. 2021, arXiv:2104.09864; Peng et al. 2023, arXiv:2309.00071 (YaRN); transformers,
// modeling_rope_utils.py (_compute_llama3_parameters, _compute_yarn_parameters).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "nn/forward.h"

namespace megalith {

// Wavelengths above original / low_freq_factor are stretched by factor, those below original / high_freq_factor are
// kept, and between them a linear blend.
struct RopeScaling {
  double factor = 8, low_freq_factor = 1, high_freq_factor = 4;
  int64_t original_max_position_embeddings = 8192;
};

// Channels that turn more than beta_fast times within the original length keep their frequency, those that turn less
// than beta_slow times are stretched by factor, and between them, by the channel's number, a linear blend.
struct YarnScaling {
  double factor = 40, beta_fast = 32, beta_slow = 1;
  int64_t original_max_position_embeddings = 4096;
  double mscale = 1, mscale_all_dim = 0;  // of scores: see yarn_mscale() and rotary_multiplier()
};

// M(scale, m) = 0.1 m ln(scale) + 1; 1 for scales up to 1. Scores are multiplied by its square: DeepSeek's softmax
// scale has M(factor, mscale_all_dim)^2.
double yarn_mscale(double scale, double m);

struct RotaryOptions {
  int64_t dim = 0;  // r: channels that are rotated, even
  double base = 10000;
  std::optional<RopeScaling> scaling;
  std::optional<YarnScaling> yarn = {};  // at most one of the two
  bool is_interleaved = false;           // pairs (2i, 2i + 1) instead of (i, i + r/2)
};

// What the layers of one forward pass share. Undefined without rotary embedding.
struct RotaryAngles {
  at::Tensor cos, sin;  // (b or 1, s, r/2) fp32, or fp64 for fp64 models; with the multiplier
};

// (r/2) fp32 on the CPU
at::Tensor rotary_inverse_frequencies(const RotaryOptions& options);

// What sines and cosines are multiplied with: with YaRN M(factor, mscale) / M(factor, mscale_all_dim), where either m
// is zero M(factor, 1); 1 otherwise.
double rotary_multiplier(const RotaryOptions& options);

// position_ids (b, s) int64; rows that are an expansion of one row give tables of one row.
RotaryAngles compute_rotary_angles(const at::Tensor& position_ids, const at::Tensor& inverse_frequencies,
                                   at::ScalarType activation_dtype, double multiplier = 1);

}  // namespace megalith
