// What lies between latents, as an autoencoder has them, and the tokens of FLUX: two by two latents are one token.
// Source: Black Forest Labs, FLUX.1 (prepare() and unpack() of its sampling); models' channels are in the order
// (channel, row, column) within a token.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace megalith {

// (b, c, h, w) -> (b, (h / 2) (w / 2), 4 c), row by row. InternalError unless h and w are even.
at::Tensor pack_latents(const at::Tensor& latents);
// The inverse: height and width are those of the latents.
at::Tensor unpack_latents(const at::Tensor& packed, int64_t height, int64_t width);
// (rows columns, 3) int64: (0, row, column) of each token, row by row.
at::Tensor image_positions(int64_t rows, int64_t columns);

}  // namespace megalith
