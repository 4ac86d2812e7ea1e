// ATen's grouped GEMM, the choice for bf16 on GPUs, without synchronising. Not yet run on a GPU: tests run it on the
// CPU, where ATen composes it. ATen would round the weight gradient to bf16 before accumulation.
#include <ATen/ATen.h>

#include "ops/grouped_linear/grouped_linear.h"

namespace megalith::ops {
namespace {

at::Tensor ends_of(const at::Tensor& offsets, const at::Tensor& rows) {
  return offsets.narrow(0, 1, offsets.size(0) - 1).to(rows.device(), at::kInt, /*non_blocking=*/true);
}

at::Tensor grouped_linear_by_aten(const at::Tensor& x, const at::Tensor& w, const at::Tensor& offsets) {
  if (!takes_grouped_product(x, w)) return kGroupedLinearReference.forward(x, w, offsets);
  return at::_grouped_mm(x, w.transpose(1, 2), ends_of(offsets, x));
}

at::Tensor grouped_dgrad_by_aten(const at::Tensor& dy, const at::Tensor& w, const at::Tensor& offsets) {
  if (!takes_grouped_product(dy, w)) return kGroupedLinearReference.dgrad(dy, w, offsets);
  return at::_grouped_mm(dy, w, ends_of(offsets, dy));
}

}  // namespace

constexpr GroupedLinearTable kGroupedLinearGpuAten{.forward = grouped_linear_by_aten, .dgrad = grouped_dgrad_by_aten};

bool takes_grouped_product(const at::Tensor& rows, const at::Tensor& w) {
  constexpr int64_t kAligned = 8;  // 16 bytes
  if (rows.scalar_type() != at::kBFloat16 || rows.size(0) == 0) return false;
  return rows.stride(0) % kAligned == 0 && w.size(1) % kAligned == 0 && w.size(2) % kAligned == 0;
}

}  // namespace megalith::ops
