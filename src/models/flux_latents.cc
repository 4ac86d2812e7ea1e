// See flux_latents.h.
#include "models/flux_latents.h"

#include <ATen/ATen.h>

#include "core/error.h"

namespace megalith {

at::Tensor pack_latents(const at::Tensor& latents) {
  const int64_t b = latents.size(0), c = latents.size(1), h = latents.size(2), w = latents.size(3);
  MEGALITH_CHECK(h % 2 == 0 && w % 2 == 0, "latents of {} x {}", h, w);
  return latents.reshape({b, c, h / 2, 2, w / 2, 2}).permute({0, 2, 4, 1, 3, 5}).reshape({b, h * w / 4, 4 * c});
}

at::Tensor unpack_latents(const at::Tensor& packed, int64_t height, int64_t width) {
  const int64_t b = packed.size(0), c = div_exact(packed.size(2), 4);
  MEGALITH_CHECK(height % 2 == 0 && width % 2 == 0 && packed.size(1) * 4 == height * width,
                 "{} tokens for latents of {} x {}", packed.size(1), height, width);
  return packed.reshape({b, height / 2, width / 2, c, 2, 2})
      .permute({0, 3, 1, 4, 2, 5})
      .reshape({b, c, height, width});
}

at::Tensor image_positions(int64_t rows, int64_t columns) {
  const at::Tensor row = at::arange(rows, at::kLong).view({rows, 1}).expand({rows, columns});
  const at::Tensor column = at::arange(columns, at::kLong).expand({rows, columns});
  return at::stack({at::zeros_like(row), row, column}, -1).reshape({rows * columns, 3});
}

}  // namespace megalith
