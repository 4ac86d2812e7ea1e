// Tensors are cut by size only, and pieces' sums added in order.
#include "ops/grad_norm/grad_norm.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "ops/arguments.h"
#include "ops/gpu/on_stream_of.h"
#include "ops/grad_norm/kernel.h"

namespace megalith::ops {
namespace {

constexpr int64_t kSquaredPieceElements = 1 << 15;

at::Tensor squared_norm_on_cpu(const std::vector<at::Tensor>& tensors) {
  std::vector<SquaredPiece> pieces;
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

at::Tensor squared_norm_and_zeros_on_cpu(const std::vector<at::Tensor>& tensors) {
  int64_t zeros = 0;
  for (const at::Tensor& tensor : tensors) zeros += tensor.numel() - at::count_nonzero(tensor).item<int64_t>();
  return at::stack({squared_norm_on_cpu(tensors), at::scalar_tensor(zeros, at::kDouble)});
}

at::TensorOptions double_options(const std::vector<at::Tensor>& tensors) {
  return tensors[0].options().dtype(at::kDouble);
}

constexpr GradNormTable kGradNormCpu{.squared_norm = squared_norm_on_cpu,
                                     .squared_norm_and_zeros = squared_norm_and_zeros_on_cpu};
constexpr GradNormTable kGradNormMeta{
    .squared_norm = [](const std::vector<at::Tensor>& tensors) { return at::empty({}, double_options(tensors)); },
    .squared_norm_and_zeros =
        [](const std::vector<at::Tensor>& tensors) { return at::empty({2}, double_options(tensors)); }};

#ifdef MEGALITH_GPU_KERNELS
at::Tensor squared_norm_and_zeros_on_gpu(const std::vector<at::Tensor>& tensors) {
  std::vector<SquaredPiece> whole;
  int64_t num_pieces = 0;
  for (const at::Tensor& tensor : tensors) {
    whole.push_back({to_dtype(tensor.scalar_type()), tensor.const_data_ptr(), tensor.numel()});
    num_pieces += gpu::num_squared_pieces(tensor.numel());
  }
  const at::Tensor scratch = at::empty({2, num_pieces}, double_options(tensors));
  at::Tensor sums = at::empty({2}, double_options(tensors));
  gpu::on_stream_of<&gpu::gradient_sums, gpu::GradientSums>({.tensors = whole.data(),
                                                             .num_tensors = static_cast<int64_t>(whole.size()),
                                                             .scratch = scratch.mutable_data_ptr<double>(),
                                                             .sums = sums.mutable_data_ptr<double>()},
                                                            tensors[0]);
  return sums;
}

constexpr GradNormTable kGradNormGpu{
    .squared_norm = [](const std::vector<at::Tensor>& tensors) { return squared_norm_and_zeros_on_gpu(tensors)[0]; },
    .squared_norm_and_zeros = squared_norm_and_zeros_on_gpu};
#endif

void check_gradients(const char* op, const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    check_floating(op, {"tensor", tensor});
    check_contiguous(op, {"tensor", tensor});
    check_devices(op, {{"the first tensor", tensors[0]}, {"tensor", tensor}});
  }
}

}  // namespace

constexpr Operator<GradNormTable> kGradNorm{.name = "grad_norm",
                                            .reference = &kGradNormReference,
                                            .cpu = &kGradNormCpu,
                                            .meta = &kGradNormMeta,
#ifdef MEGALITH_GPU_KERNELS
                                            .gpu = &kGradNormGpu
#endif
};

at::Tensor squared_norm(const std::vector<at::Tensor>& tensors, Kernels kernels) {
  if (tensors.empty()) return at::zeros({}, at::kDouble);
  check_gradients("squared_norm", tensors);
  return kGradNorm.run("squared_norm", &GradNormTable::squared_norm, kernels, tensors);
}

at::Tensor squared_norm_and_zeros(const std::vector<at::Tensor>& tensors, Kernels kernels) {
  if (tensors.empty()) return at::zeros({2}, at::kDouble);
  check_gradients("squared_norm_and_zeros", tensors);
  return kGradNorm.run("squared_norm_and_zeros", &GradNormTable::squared_norm_and_zeros, kernels, tensors);
}

}  // namespace megalith::ops
