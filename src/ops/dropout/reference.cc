// In ATen's operators.
#include <ATen/ATen.h>

#include <cmath>

#include "ops/arguments.h"
#include "ops/dropout/dropout.h"
#include "ops/philox_words.h"

namespace megalith::ops {
namespace reference {
namespace {

at::Tensor dropout(const at::Tensor& x, const at::Tensor& row_ids, int64_t column_start, double p, uint64_t key) {
  const at::Tensor columns = at::arange(column_start, column_start + x.size(1), row_ids.options()).unsqueeze(0);
  const at::Tensor words =
      philox_words(key, columns.bitwise_right_shift(2), row_ids.unsqueeze(1), columns.bitwise_and(3));
  // word * 2^-32 >= p, without rounding.
  const at::Tensor is_kept = words >= static_cast<int64_t>(std::ceil(p * 0x1p32));
  const at::Tensor scaled = x.to(wide_dtype(x.scalar_type())) * (1 / (1 - p));
  return at::where(is_kept, scaled, 0.0).to(x.scalar_type());
}

}  // namespace
}  // namespace reference

constexpr DropoutTable kDropoutReference{.dropout = reference::dropout};

}  // namespace megalith::ops
