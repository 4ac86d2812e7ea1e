// In ATen's operators.
#include <ATen/ATen.h>

#include "ops/sinkhorn/kernel.h"
#include "ops/sinkhorn/sinkhorn.h"

namespace megalith::ops {
namespace reference {
namespace {

at::Tensor sinkhorn(const at::Tensor& x) {
  const at::Tensor cost = x.to(at::kDouble).exp();
  if (cost.numel() == 0) return cost;
  const auto num_rows = static_cast<double>(cost.size(0)), num_columns = static_cast<double>(cost.size(1));
  at::Tensor of_rows, of_columns = at::ones({cost.size(1)}, cost.options());
  for (int i = 0; i < kMostSinkhornRounds; ++i) {
    of_rows = (at::mv(cost, of_columns) + kSinkhornEpsilon).mul_(num_rows).reciprocal_();
    const at::Tensor next = (at::mv(cost.t(), of_rows) + kSinkhornEpsilon).mul_(num_columns).reciprocal_();
    const double moved = (next - of_columns).abs_().mean().item<double>();
    of_columns = next;
    if (!(moved > kSinkhornTolerance)) break;
  }
  return cost * of_columns * of_rows.unsqueeze(1);
}

}  // namespace
}  // namespace reference

constexpr SinkhornTable kSinkhornReference{.sinkhorn = reference::sinkhorn};

}  // namespace megalith::ops
