#include "checkpoint/mxfp4.h"

#include <ATen/ATen.h>

#include <array>

namespace megalith {

at::Tensor decode_mxfp4(const at::Tensor& blocks, const at::Tensor& scales) {
  constexpr std::array<float, 16> kValues = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6, -0.F, -0.5F, -1, -1.5F, -2, -3, -4, -6};
  // By byte.
  const at::Tensor pairs = at::empty({256, 2}, at::kFloat);
  for (size_t byte = 0; byte < 256; ++byte) {
    pairs.mutable_data_ptr<float>()[2 * byte] = kValues[byte % 16];
    pairs.mutable_data_ptr<float>()[2 * byte + 1] = kValues[byte / 16];
  }
  const at::Tensor numbers = pairs.index_select(0, blocks.reshape({-1}).to(at::kInt)).view({-1, kMxfp4Block});
  const at::Tensor exponents = scales.reshape({-1, 1}).to(at::kInt) - 127;
  std::vector<int64_t> shape = scales.sizes().vec();
  shape.back() *= kMxfp4Block;
  // 2^-127 is normal in float64.
  return at::ldexp(numbers.to(at::kDouble), exponents).to(at::kFloat).view(shape);
}

}  // namespace megalith
