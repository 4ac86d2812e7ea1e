// Pictures of another size, to the byte as Pillow resizes: a separable filter whose support grows with the reduction,
// so that details that no longer fit are averaged instead of turning into patterns. Weights are whole numbers of 22
// bits, and each of the two passes (rows, then columns) rounds to a byte. Source: Pillow, src/libImaging/Resample.c.
#pragma once

#include <optional>

#include "image/picture.h"

namespace megalith {

enum class ResizeFilter {
  kLanczos,   // diffusers' VaeImageProcessor: the sharpest, and what FLUX's pipelines give the autoencoder
  kBicubic,   // Pillow's own default, which torchtitan's and MLPerf's FLUX take
  kBilinear,
};

Picture resize(const Picture& picture, int64_t width, int64_t height, ResizeFilter filter);

// The part of width × height whose upper left corner is (x, y). InternalError for one that is not inside.
Picture crop(const Picture& picture, int64_t x, int64_t y, int64_t width, int64_t height);

// Where a square is cut of a picture whose short side is `size` already.
struct CropPlace {
  bool is_centred = true;
  // Not centred: a number of [0, 1) that says where along the longer side.
  double along = 0;
};

// The short side becomes `size` (the other one by the same factor, cut to whole pixels as torchtitan does), then a
// square of `size` is cut out.
Picture resize_and_crop(const Picture& picture, int64_t size, const CropPlace& place,
                        ResizeFilter filter = ResizeFilter::kLanczos);

}  // namespace megalith
