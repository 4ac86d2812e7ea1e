// In ATen's operators.
#include <ATen/ATen.h>

#include "ops/amax.h"
#include "ops/fp8_cast/fp8_cast.h"

namespace megalith::ops {
namespace reference {
namespace {

using at::Tensor;

Tensor spread_scales(const Tensor& scale, int64_t dim, int64_t size) {
  if (scale.size(dim) == 1 || scale.size(dim) == size) return scale;
  return scale.repeat_interleave(128, dim).narrow(dim, 0, size);
}

Fp8Cast fp8_cast(const Tensor& x, const Tensor& scale, at::ScalarType dtype, bool with_transposed, const Tensor& amax) {
  const double largest = largest_of_fp8(dtype);
  const Tensor factor = scale.dim() == 0 ? scale : spread_scales(spread_scales(scale, 0, x.size(0)), 1, x.size(1));
  // LibTorch's cast gives NaN or infinity, hardware the largest number.
  const Tensor values = (x.to(scale.scalar_type()) * factor).clamp_(-largest, largest).to(dtype).contiguous();
  raise_amax(amax, x);
  Fp8Cast result{values, {}};
  if (with_transposed) result.transposed = values.view(at::kByte).t().contiguous().view(dtype);
  return result;
}

}  // namespace
}  // namespace reference

constexpr Fp8CastTable kFp8CastReference{.cast = reference::fp8_cast};

}  // namespace megalith::ops
