#include "image/pixels.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace megalith {

at::Tensor to_pixels(const Picture& picture) {
  at::Tensor pixels = at::empty({3, picture.height, picture.width}, at::kFloat);
  const int64_t area = picture.width * picture.height;
  float* out = pixels.mutable_data_ptr<float>();
  for (int64_t c = 0; c < 3; ++c) {
    for (int64_t i = 0; i < area; ++i) {
      out[c * area + i] = static_cast<float>(picture.rgb[static_cast<size_t>(3 * i + c)]) / 255.0f * 2.0f - 1.0f;
    }
  }
  return pixels;
}

Picture from_pixels(const at::Tensor& pixels) {
  MEGALITH_CHECK(pixels.dim() == 3 && pixels.size(0) == 3, "pixels of {} dims", pixels.dim());
  const at::Tensor values = pixels.detach().to(at::kCPU, at::kFloat).contiguous();
  Picture picture = make_picture(values.size(2), values.size(1), "the picture");
  const int64_t area = picture.width * picture.height;
  const float* in = values.const_data_ptr<float>();
  for (int64_t c = 0; c < 3; ++c) {
    for (int64_t i = 0; i < area; ++i) {
      const float value = std::isnan(in[c * area + i]) ? 0.0f : std::clamp(in[c * area + i] / 2 + 0.5f, 0.0f, 1.0f);
      picture.rgb[static_cast<size_t>(3 * i + c)] = static_cast<uint8_t>(std::nearbyint(value * 255.0f));
    }
  }
  return picture;
}

}  // namespace megalith
