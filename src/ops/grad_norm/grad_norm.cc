// On the CPU the tensors are cut into pieces by size alone, and the pieces' sums are added in order.
#include "ops/grad_norm/grad_norm.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "ops/arguments.h"
#include "ops/grad_norm/kernel.h"

namespace megalith::ops {
namespace {

constexpr int64_t kSquaredPieceElements = 1 << 15;

at::Tensor squared_norm_on_cpu(const std::vector<at::Tensor>& tensors) {
  std::vector<cpu::SquaredPiece> pieces;
  for (const at::Tensor& tensor : tensors) {
    const auto* values = static_cast<const char*>(tensor.const_data_ptr());
    const auto size = static_cast<int64_t>(tensor.element_size());
    for (int64_t first = 0; first < tensor.numel(); first += kSquaredPieceElements) {
      pieces.push_back({to_dtype(tensor.scalar_type()), values + first * size,
                        std::min(kSquaredPieceElements, tensor.numel() - first)});
    }
  }
  std::vector<double> sums(pieces.size());
  MEGALITH_CPU_KERNEL(squared_sums)(pieces.data(), static_cast<int64_t>(pieces.size()), sums.data());
  double total = 0;
  for (const double sum : sums) total += sum;
  return at::scalar_tensor(total, at::kDouble);
}

constexpr GradNormTable kGradNormCpu{.squared_norm = squared_norm_on_cpu};
constexpr GradNormTable kGradNormMeta{.squared_norm = [](const std::vector<at::Tensor>& tensors) {
  return at::empty({}, tensors[0].options().dtype(at::kDouble));
}};

}  // namespace

constexpr Operator<GradNormTable> kGradNorm{
    .name = "grad_norm", .reference = &kGradNormReference, .cpu = &kGradNormCpu, .meta = &kGradNormMeta};

at::Tensor squared_norm(const std::vector<at::Tensor>& tensors, Kernels kernels) {
  if (tensors.empty()) return at::zeros({}, at::kDouble);
  for (const at::Tensor& tensor : tensors) {
    check_floating("squared_norm", {"tensor", tensor});
    check_contiguous("squared_norm", {"tensor", tensor});
    check_devices("squared_norm", {{"the first tensor", tensors[0]}, {"tensor", tensor}});
  }
  return kGradNorm.run("squared_norm", &GradNormTable::squared_norm, kernels, tensors);
}

}  // namespace megalith::ops
