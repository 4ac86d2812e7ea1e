// MXFP4: four-bit numbers with a scale per 32, as in gpt-oss's experts.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace megalith {

inline constexpr int64_t kMxfp4Block = 32;  // numbers
inline constexpr int64_t kMxfp4Bytes = 16;  // two numbers a byte, the first in the low bits

// blocks (…, g, 16) and scales (…, g), bytes -> (…, 32 g) float32, exact: ±{0, 0.5, 1, 1.5, 2, 3, 4, 6} times 2^(scale
// - 127). Source: OCP Microscaling Formats (MX) Specification 1.0.
at::Tensor decode_mxfp4(const at::Tensor& blocks, const at::Tensor& scales);

}  // namespace megalith
