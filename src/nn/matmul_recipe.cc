#include "nn/matmul_recipe.h"

#include "comm/group.h"
#include "nn/module.h"
#include "ops/grouped_linear/grouped_linear.h"
#include "ops/linear/linear.h"

namespace megalith {

std::shared_ptr<const MatmulRecipe> MatmulRecipe::for_chunk() const {
  return std::make_shared<const MatmulRecipe>(kernels_);
}

Operand MatmulRecipe::take(const at::Tensor& tensor, OperandRole /*role*/, const OperandScope& /*scope*/) const {
  return {tensor};
}

KeptOperand MatmulRecipe::keep(const Activation& x, const Operand& taken, const OperandScope& /*scope*/) const {
  return {x.keep(), {}, taken.dtype};
}

at::Tensor MatmulRecipe::forward(const Operand& x, const Operand& w, const at::Tensor& bias) const {
  return ops::linear_forward(x.values, w.values, bias, kernels_);
}

at::Tensor MatmulRecipe::dgrad(const Operand& dy, const Operand& w) const {
  return ops::linear_dgrad(dy.values, w.values, kernels_);
}

void MatmulRecipe::wgrad_(const at::Tensor& dw, const Operand& dy, const Operand& x, bool accumulate) const {
  ops::linear_wgrad_(dw, dy.values, x.values, accumulate, kernels_);
}

at::Tensor MatmulRecipe::grouped_forward(const Operand& x, const Operand& w, const at::Tensor& offsets) const {
  return ops::grouped_linear_forward(x.values, w.values, offsets, kernels_);
}

at::Tensor MatmulRecipe::grouped_dgrad(const Operand& dy, const Operand& w, const at::Tensor& offsets) const {
  return ops::grouped_linear_dgrad(dy.values, w.values, offsets, kernels_);
}

void MatmulRecipe::grouped_wgrad_(const at::Tensor& dw, const Operand& dy, const Operand& x, const at::Tensor& offsets,
                                  bool accumulate) const {
  ops::grouped_linear_wgrad_(dw, dy.values, x.values, offsets, accumulate, kernels_);
}

void MatmulRecipe::bias_grad_(const at::Tensor& db, const at::Tensor& dy) const { ops::bias_grad_(db, dy, kernels_); }

std::shared_ptr<const MatmulRecipe> plain_recipe(Kernels kernels) {
  static const auto fused = std::make_shared<const MatmulRecipe>(Kernels::kFused);
  static const auto reference = std::make_shared<const MatmulRecipe>(Kernels::kReference);
  return kernels == Kernels::kReference ? reference : fused;
}

std::shared_ptr<const MatmulRecipe> recipe_of(const LayerContext& context) {
  return context.recipe != nullptr ? context.recipe : plain_recipe(context.kernels);
}

}  // namespace megalith
