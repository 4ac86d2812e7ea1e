// Pictures as tensors of pixels, and back.
#pragma once

#include <ATen/core/Tensor.h>

#include "image/picture.h"

namespace megalith {

// (3, height, width) float32 on the CPU: bytes 0 … 255 as -1 … 1, as diffusers computes it (v / 255 · 2 - 1).
at::Tensor to_pixels(const Picture& picture);

// From (3, height, width), any floating dtype and device: clamped to [-1, 1], rounded to the nearest byte.
// InternalError for other shapes.
Picture from_pixels(const at::Tensor& pixels);

}  // namespace megalith
