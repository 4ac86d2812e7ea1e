// Registers adamw_ for the CPU and for the meta device: cuts all shards into pieces of one size for the threads.
#include <ATen/ATen.h>

#include <cmath>
#include <vector>

#include "ops/adamw/kernel.h"
#include "ops/arguments.h"
#include "ops/library.h"

namespace megalith::ops::cpu {
namespace {

constexpr int64_t kPieceElements = 1 << 16;

void adamw_(at::TensorList model, at::TensorList master, at::TensorList grad, at::TensorList exp_avg,
            at::TensorList exp_avg_sq, at::ArrayRef<double> lr, at::ArrayRef<double> weight_decay,
            const at::Tensor& grad_scale, double beta1, double beta2, double eps, int64_t step) {
  std::vector<AdamwPiece> pieces;
  const auto at_element = [](const at::Tensor& tensor, int64_t first) {
    return static_cast<char*>(tensor.mutable_data_ptr()) + first * static_cast<int64_t>(tensor.element_size());
  };
  for (size_t i = 0; i < master.size(); ++i) {
    for (int64_t first = 0; first < master[i].numel(); first += kPieceElements) {
      pieces.push_back({.model_dtype = to_dtype(model[i].scalar_type()),
                        .moment_dtype = to_dtype(exp_avg[i].scalar_type()),
                        .is_double = master[i].scalar_type() == at::kDouble,
                        .count = std::min(kPieceElements, master[i].numel() - first),
                        .model = model[i].is_same(master[i]) ? nullptr : at_element(model[i], first),
                        .master = at_element(master[i], first),
                        .grad = at_element(grad[i], first),
                        .exp_avg = at_element(exp_avg[i], first),
                        .exp_avg_sq = at_element(exp_avg_sq[i], first),
                        .lr = lr[i],
                        .weight_decay = weight_decay[i]});
    }
  }
  MEGALITH_CPU_KERNEL(adamw)
  (pieces.data(), static_cast<int64_t>(pieces.size()),
   {.grad_scale = grad_scale.item<double>(),
    .beta1 = beta1,
    .beta2 = beta2,
    .eps = eps,
    .correction1 = 1 - std::pow(beta1, step),
    .correction2 = 1 - std::pow(beta2, step)});
}

// Tensors without storage have nothing to update.
void adamw_meta_(at::TensorList, at::TensorList, at::TensorList, at::TensorList, at::TensorList, at::ArrayRef<double>,
                 at::ArrayRef<double>, const at::Tensor&, double, double, double, int64_t) {}

}  // namespace
}  // namespace megalith::ops::cpu

TORCH_LIBRARY_IMPL(megalith, CPU, m) { m.impl("adamw_", TORCH_FN(megalith::ops::cpu::adamw_)); }

TORCH_LIBRARY_IMPL(megalith, Meta, m) { m.impl("adamw_", TORCH_FN(megalith::ops::cpu::adamw_meta_)); }
