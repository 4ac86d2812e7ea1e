// Resizing, to the byte as Pillow: a separable filter whose support grows with the reduction, against aliasing. Weights
// are 22-bit integers; both passes (rows, then columns) round to bytes. Source: Pillow, src/libImaging/Resample.c.
#pragma once

#include <optional>

#include "image/picture.h"

namespace megalith {

enum class ResizeFilter {
  kLanczos,  // diffusers' VaeImageProcessor, for FLUX's autoencoder: the sharpest
  kBicubic,  // Pillow's default; torchtitan's and MLPerf's FLUX
  kBilinear,
};

Picture resize(const Picture& picture, int64_t width, int64_t height, ResizeFilter filter);

// (x, y) is the upper left corner. InternalError if not inside.
Picture crop(const Picture& picture, int64_t x, int64_t y, int64_t width, int64_t height);

// A square's place in a picture whose short side is `size`.
struct CropPlace {
  bool is_centred = true;
  // Unless centred: a fraction in [0, 1) along the longer side.
  double along = 0;
};

// Scales the short side to `size` (the other alike, truncated to whole pixels as in torchtitan), then cuts out a
// square.
Picture resize_and_crop(const Picture& picture, int64_t size, const CropPlace& place,
                        ResizeFilter filter = ResizeFilter::kLanczos);

}  // namespace megalith
