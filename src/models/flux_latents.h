// Conversion between an autoencoder's latents and FLUX's tokens, one per 2x2 latents.
// Source: Black Forest Labs, FLUX.1 (prepare() and unpack() of its sampling). Within a token channels are ordered
// (channel, row, column).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace megalith {

// (b, c, h, w) -> (b, (h / 2) (w / 2), 4 c), row-major. InternalError unless h and w are even.
at::Tensor pack_latents(const at::Tensor& latents);
// The inverse; height and width are in latents.
at::Tensor unpack_latents(const at::Tensor& packed, int64_t height, int64_t width);
// (rows columns, 3) int64: (0, row, column) of each token, row-major.
at::Tensor image_positions(int64_t rows, int64_t columns);

}  // namespace megalith
