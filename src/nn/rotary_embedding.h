// Angles of the rotary position embedding, with Llama 3.1's and YaRN's stretching of long wavelengths.
//
//   inv_freq[i] = base^(-2i/r), i < r/2;   angle = position * inv_freq[i]
//
// Float32 in Hugging Face's order of operations, so the tables agree to the bit. Source: Su et al. 2021,
// arXiv:2104.09864; Peng et al. 2023, arXiv:2309.00071 (YaRN); transformers, modeling_rope_utils.py
// (_compute_llama3_parameters, _compute_yarn_parameters).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "nn/forward.h"
#include "nn/rotary_options.h"

namespace megalith {

// Shared by the layers of a forward pass. Undefined without rotary embedding.
struct RotaryAngles {
  at::Tensor cos, sin;  // (b or 1, s, r/2) fp32, or fp64 for fp64 models; with the multiplier
  // (b or 1, s), likewise: the factor of queries in layers that do not rotate; undefined: 1.
  at::Tensor query_scale = {};
};

// (r/2) fp32 on the CPU, r being the (even) number of rotated channels; with Llama 3.1's rule or YaRN's.
at::Tensor rotary_inverse_frequencies(int64_t dim, const RotaryOptions& options);
at::Tensor rotary_inverse_frequencies(int64_t dim, double base, const YarnOptions& options);

// Factor of sines and cosines: with YaRN M(factor, mscale) / M(factor, mscale_all_dim), or M(factor, 1) if either m is
// zero; 1 otherwise.
double rotary_multiplier(const YarnOptions& options);

// position_ids (b, s) int64; rows expanded from one row give tables of one row.
RotaryAngles compute_rotary_angles(const at::Tensor& position_ids, const at::Tensor& inverse_frequencies,
                                   at::ScalarType activation_dtype, double multiplier = 1);

}  // namespace megalith
