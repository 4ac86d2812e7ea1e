// Registers squared_norm for the CPU and for the meta device: cuts the tensors into pieces by size alone and adds the
// pieces' sums in order.
#include <ATen/ATen.h>

#include <vector>

#include "ops/arguments.h"
#include "ops/grad_norm/kernel.h"
#include "ops/library.h"

namespace megalith::ops::cpu {
namespace {

constexpr int64_t kPieceElements = 1 << 15;

at::Tensor squared_norm(at::TensorList tensors) {
  std::vector<SquaredPiece> pieces;
  for (const at::Tensor& tensor : tensors) {
    const auto* values = static_cast<const char*>(tensor.const_data_ptr());
    const auto size = static_cast<int64_t>(tensor.element_size());
    for (int64_t first = 0; first < tensor.numel(); first += kPieceElements) {
      pieces.push_back(
          {to_dtype(tensor.scalar_type()), values + first * size, std::min(kPieceElements, tensor.numel() - first)});
    }
  }
  std::vector<double> sums(pieces.size());
  MEGALITH_CPU_KERNEL(squared_sums)(pieces.data(), static_cast<int64_t>(pieces.size()), sums.data());
  double total = 0;
  for (const double sum : sums) total += sum;
  return at::scalar_tensor(total, at::kDouble);
}

at::Tensor squared_norm_meta(at::TensorList tensors) { return at::empty({}, tensors[0].options().dtype(at::kDouble)); }

}  // namespace
}  // namespace megalith::ops::cpu

TORCH_LIBRARY_IMPL(megalith, CPU, m) { m.impl("squared_norm", TORCH_FN(megalith::ops::cpu::squared_norm)); }

TORCH_LIBRARY_IMPL(megalith, Meta, m) { m.impl("squared_norm", TORCH_FN(megalith::ops::cpu::squared_norm_meta)); }
