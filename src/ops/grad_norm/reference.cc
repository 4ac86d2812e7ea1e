// In ATen's operators.
#include <ATen/ATen.h>

#include "ops/grad_norm/grad_norm.h"

namespace megalith::ops {
namespace reference {
namespace {

at::Tensor squared_norm(const std::vector<at::Tensor>& tensors) {
  at::Tensor total = at::zeros({}, tensors[0].options().dtype(at::kDouble));
  for (const at::Tensor& tensor : tensors) total = total + tensor.to(at::kDouble).square().sum();
  return total;
}

at::Tensor squared_norm_and_zeros(const std::vector<at::Tensor>& tensors) {
  const at::Tensor square = squared_norm(tensors);
  at::Tensor zeros = at::zeros_like(square);
  for (const at::Tensor& tensor : tensors) zeros = zeros + (tensor.numel() - at::count_nonzero(tensor));
  return at::stack({square, zeros});
}

}  // namespace
}  // namespace reference

constexpr GradNormTable kGradNormReference{.squared_norm = reference::squared_norm,
                                           .squared_norm_and_zeros = reference::squared_norm_and_zeros};

}  // namespace megalith::ops
