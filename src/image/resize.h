// Resizing, equal to Pillow's to the byte: a separable filter whose support grows with the reduction, to avoid
// aliasing. Weights are 22-bit integers, and each of the two passes (rows, then columns) rounds to a byte. Source:
// Pillow, src/libImaging/Resample.c.
#pragma once

#include <optional>

#include "image/picture.h"

namespace megalith {

enum class ResizeFilter {
  kLanczos,  // diffusers' VaeImageProcessor: the sharpest, used for FLUX's autoencoder
  kBicubic,  // Pillow's default, used by torchtitan's and MLPerf's FLUX
  kBilinear,
};

Picture resize(const Picture& picture, int64_t width, int64_t height, ResizeFilter filter);

// The part of width × height with upper left corner (x, y). InternalError if not inside.
Picture crop(const Picture& picture, int64_t x, int64_t y, int64_t width, int64_t height);

// The place of a square in a picture whose short side is `size`.
struct CropPlace {
  bool is_centred = true;
  // Not centred: a fraction in [0, 1) along the longer side.
  double along = 0;
};

// Scales the short side to `size` (the other one alike, truncated to whole pixels as in torchtitan), then cuts out a
// square of `size`.
Picture resize_and_crop(const Picture& picture, int64_t size, const CropPlace& place,
                        ResizeFilter filter = ResizeFilter::kLanczos);

}  // namespace megalith
