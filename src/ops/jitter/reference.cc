// In ATen's operators.
#include <ATen/ATen.h>

#include "ops/arguments.h"
#include "ops/jitter/jitter.h"
#include "ops/philox_words.h"

namespace megalith::ops {
namespace reference {
namespace {

at::Tensor jitter(const at::Tensor& x, const at::Tensor& row_ids, double eps, uint64_t key) {
  const at::Tensor columns = at::arange(x.size(1), row_ids.options()).unsqueeze(0);
  const at::Tensor words =
      philox_words(key, columns.bitwise_right_shift(2), row_ids.unsqueeze(1), columns.bitwise_and(3));
  const at::Tensor noise = words.to(at::kDouble) * 0x1p-32 * (2 * eps) + (1 - eps);
  return x * noise.to(wide_dtype(x.scalar_type())).to(x.scalar_type());
}

}  // namespace
}  // namespace reference

constexpr JitterTable kJitterReference{.jitter = reference::jitter};

}  // namespace megalith::ops
