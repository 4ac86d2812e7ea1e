// Angles of the rotary embedding, with Llama 3.1's and YaRN's stretching of long wavelengths.
//
//   inv_freq[i] = base^(-2i/r), i < r/2;   angle = position * inv_freq[i]
//
// Float32 in Hugging Face's order of operations, for equal bits. Sources: arXiv:2104.09864; arXiv:2309.00071 (YaRN);
// transformers, modeling_rope_utils.py.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "nn/forward.h"
#include "nn/rotary_options.h"

namespace megalith {

// Undefined without rotary embedding.
struct RotaryAngles {
  at::Tensor cos, sin;  // (b or 1, s, r/2) wide, times the multiplier
  // (b or 1, s) wide: queries' factor in layers without rotation; undefined: 1.
  at::Tensor query_scale = {};
};

// (r/2) fp32 on the CPU; r = dim is even.
at::Tensor rotary_inverse_frequencies(int64_t dim, const RotaryOptions& options);
at::Tensor rotary_inverse_frequencies(int64_t dim, double base, const YarnOptions& options);

// With YaRN M(factor, mscale) / M(factor, mscale_all_dim), or M(factor, 1) if either m is 0; else 1.
double rotary_multiplier(const YarnOptions& options);

// position_ids (b, s) int64; rows expanded from one give tables of one row.
RotaryAngles compute_rotary_angles(const at::Tensor& position_ids, const at::Tensor& inverse_frequencies,
                                   at::ScalarType activation_dtype, double multiplier = 1);

}  // namespace megalith
