// Registers the experts' products for GPUs (the key CUDA is ROCm's as well). Nothing here waits for the device.
//
// The weight gradient stays with the reference: ATen's grouped product would round it to bf16 before it is summed.
#include "ops/grouped_linear/gpu_aten.h"

#include <ATen/ATen.h>

#include "ops/grouped_linear/reference.h"
#include "ops/library.h"

namespace megalith::ops::gpu {
namespace {

// Where each expert's rows end, on the device of the rows.
at::Tensor ends_of(const at::Tensor& offsets, const at::Tensor& rows) {
  return offsets.narrow(0, 1, offsets.size(0) - 1).to(rows.device(), at::kInt, /*non_blocking=*/true);
}

}  // namespace

bool takes_grouped_product(const at::Tensor& rows, const at::Tensor& w) {
  constexpr int64_t kAligned = 8;  // 16 bytes
  if (rows.scalar_type() != at::kBFloat16 || rows.size(0) == 0) return false;
  return rows.stride(0) % kAligned == 0 && w.size(1) % kAligned == 0 && w.size(2) % kAligned == 0;
}

at::Tensor grouped_linear_forward(const at::Tensor& x, const at::Tensor& w, const at::Tensor& offsets) {
  if (!takes_grouped_product(x, w)) return reference::grouped_linear_forward(x, w, offsets);
  return at::_grouped_mm(x, w.transpose(1, 2), ends_of(offsets, x));
}

at::Tensor grouped_linear_dgrad(const at::Tensor& dy, const at::Tensor& w, const at::Tensor& offsets) {
  if (!takes_grouped_product(dy, w)) return reference::grouped_linear_dgrad(dy, w, offsets);
  return at::_grouped_mm(dy, w, ends_of(offsets, dy));
}

}  // namespace megalith::ops::gpu

TORCH_LIBRARY_IMPL(megalith, CUDA, m) {
  namespace gpu = megalith::ops::gpu;
  m.impl("grouped_linear", TORCH_FN(gpu::grouped_linear_forward));
  m.impl("grouped_linear_forward", TORCH_FN(gpu::grouped_linear_forward));
  m.impl("grouped_linear_dgrad", TORCH_FN(gpu::grouped_linear_dgrad));
}
