// See fp8_recipe.h.
#include "nn/fp8_recipe.h"

#include <ATen/ATen.h>

#include <limits>

#include "comm/group.h"
#include "ops/grouped_linear/grouped_linear.h"
#include "ops/linear/linear.h"

namespace megalith {

namespace {

double largest_of(at::ScalarType fp8) { return fp8 == at::kFloat8_e5m2 ? 57344 : 448; }

// The dtype in which scales are computed and products are added.
at::ScalarType wide_of(at::ScalarType dtype) { return dtype == at::kDouble ? at::kDouble : at::kFloat; }

// The expert of each row.
at::Tensor experts_of_rows(const at::Tensor& offsets, int64_t num_rows, at::Device device) {
  const auto numbers = at::TensorOptions(offsets.device()).dtype(at::kLong);
  if (offsets.is_meta()) return at::empty({num_rows}, numbers);
  return at::arange(offsets.size(0) - 1, numbers).repeat_interleave(offsets.diff(), 0, num_rows).to(device);
}

// The largest absolute values that scales are made of: 0-d, or (e).
at::Tensor compute_amax(const at::Tensor& tensor, const OperandScope& scope) {
  const auto wide = tensor.options().dtype(wide_of(tensor.scalar_type()));
  if (tensor.is_meta()) {
    const int64_t num_experts = scope.offsets.defined() ? scope.offsets.size(0) - 1 : scope.num_experts;
    return num_experts > 0 ? at::empty({num_experts}, wide) : at::empty({}, wide);
  }
  if (scope.offsets.defined()) {
    at::Tensor amax = at::zeros({scope.offsets.size(0) - 1}, wide);
    if (tensor.numel() == 0) return amax;
    const at::Tensor of_rows = tensor.abs().amax(1).to(wide.dtype());
    const at::Tensor experts = experts_of_rows(scope.offsets, tensor.size(0), tensor.device());
    return amax.scatter_reduce(0, experts, of_rows, "amax");
  }
  if (tensor.numel() == 0) return at::zeros({}, wide);
  if (scope.num_experts > 0) return tensor.view({scope.num_experts, -1}).abs().amax(1).to(wide.dtype());
  return tensor.abs().amax().to(wide.dtype());
}

at::Tensor compute_scale(const at::Tensor& amax, double largest) {
  if (amax.is_meta()) return at::empty_like(amax);
  constexpr double kMost = std::numeric_limits<float>::max();
  const at::Tensor scale = (largest / amax).clamp_max(kMost);
  return at::where(amax.eq(0).logical_or(amax.isinf()), at::ones_like(scale), scale);
}

// tensor times a factor of the whole or of each expert, in the dtype of the factor.
at::Tensor scaled(const at::Tensor& tensor, const at::Tensor& factor, const OperandScope& scope) {
  const at::Tensor wide = tensor.to(factor.scalar_type());
  if (scope.offsets.defined()) {
    if (tensor.is_meta()) return at::empty_like(wide);  // where LibTorch has no index_select
    const at::Tensor experts = experts_of_rows(scope.offsets, tensor.size(0), tensor.device());
    return wide * factor.index_select(0, experts).unsqueeze(1);
  }
  if (factor.dim() == 0) return wide * factor;
  return (wide.view({factor.size(0), -1}) * factor.unsqueeze(1)).view(tensor.sizes());
}

// Saturating: a cast of LibTorch's gives NaN above E4M3's range, where the hardware gives the largest number.
at::Tensor cast(const at::Tensor& tensor, at::ScalarType fp8, const at::Tensor& scale, const OperandScope& scope) {
  const double largest = largest_of(fp8);
  return scaled(tensor, scale, scope).clamp_(-largest, largest).to(fp8);
}

// What the eight bits stand for.
at::Tensor values_of(const Operand& operand, const at::Tensor& offsets = {}) {
  return scaled(operand.values, operand.scale.reciprocal(), {.offsets = offsets});
}

}  // namespace

void Fp8Options::visit(OptionVisitor& v) {
  v.group("Precision");
  v.field("fp8_format", fp8_format,
          "Round the operands of the layers' matrix products to eight bits: hybrid has E4M3 forward and E5M2 "
          "gradients, e4m3 has E4M3 for both. Embedding, router, attention and head stay in the model's precision. "
          "Needs fp8_recipe tensorwise. The products are computed in fp32 from the rounded values, which gives FP8 "
          "training's numbers and smaller activations, but not its speed.")
      .words({"hybrid", "e4m3"})
      .alias("fp8")
      .in_toy(InToy::kSetAside);
  v.field("fp8_recipe", fp8_recipe,
          "How scales are found when fp8_format is set. tensorwise: from each tensor's present largest absolute value "
          "(Transformer Engine's current scaling). delayed, blockwise and mxfp8 are refused; delayed is the default "
          "because it is Megatron-LM's.")
      .words({"delayed", "tensorwise", "blockwise", "mxfp8"});
}

std::vector<UserError> check_fp8_options(const Fp8Options& options) {
  std::vector<UserError> errors;
  if (options.is_on() && options.fp8_recipe != "tensorwise") {
    errors.emplace_back(fmt::format("fp8_format {} with fp8_recipe {}, which this build does not have",
                                    *options.fp8_format, options.fp8_recipe),
                        "set fp8_recipe to tensorwise, or leave fp8_format out");
  }
  return errors;
}

Operand Fp8Recipe::take(const at::Tensor& tensor, OperandRole role, const OperandScope& scope) const {
  const bool is_wider = role == OperandRole::kGradient && format_ == Fp8Format::kHybrid;
  const at::ScalarType fp8 = is_wider ? at::kFloat8_e5m2 : at::kFloat8_e4m3fn;
  at::Tensor scale = scope.scale;
  if (!scale.defined()) {
    const at::Tensor amax = compute_amax(tensor, scope);
    if (scope.group != nullptr && scope.group->size() > 1) {
      scope.group->all_reduce(amax, ReduceOp::kMax, std::string(scope.label) + " amax").wait();
    }
    scale = compute_scale(amax, largest_of(fp8));
  }
  return {cast(tensor, fp8, scale, scope), scale, tensor.scalar_type()};
}

KeptOperand Fp8Recipe::keep(const Activation& x, const Operand& taken, const OperandScope& scope) const {
  if (!x.kept.is_defined()) return {Kept(taken.values), taken.scale, taken.dtype};
  // With the scale of the first pass.
  const Kept again = x.kept.then([scope, fp8 = taken.values.scalar_type(), scale = taken.scale](
                                     const at::Tensor& value) { return cast(value, fp8, scale, scope); });
  return {again, taken.scale, taken.dtype};
}

at::Tensor Fp8Recipe::forward(const Operand& x, const Operand& w, const at::Tensor& bias) const {
  const at::Tensor wide_bias = bias.defined() ? bias.to(x.scale.scalar_type()) : bias;
  return ops::linear_forward(values_of(x), values_of(w), wide_bias, kernels()).to(x.dtype);
}

at::Tensor Fp8Recipe::dgrad(const Operand& dy, const Operand& w) const {
  return ops::linear_dgrad(values_of(dy), values_of(w), kernels()).to(dy.dtype);
}

void Fp8Recipe::wgrad_(const at::Tensor& dw, const Operand& dy, const Operand& x, bool accumulate) const {
  ops::linear_wgrad_(dw, values_of(dy), values_of(x), accumulate, kernels());
}

at::Tensor Fp8Recipe::grouped_forward(const Operand& x, const Operand& w, const at::Tensor& offsets) const {
  return ops::grouped_linear_forward(values_of(x, offsets), values_of(w), offsets, kernels()).to(x.dtype);
}

at::Tensor Fp8Recipe::grouped_dgrad(const Operand& dy, const Operand& w, const at::Tensor& offsets) const {
  return ops::grouped_linear_dgrad(values_of(dy, offsets), values_of(w), offsets, kernels()).to(dy.dtype);
}

void Fp8Recipe::grouped_wgrad_(const at::Tensor& dw, const Operand& dy, const Operand& x, const at::Tensor& offsets,
                               bool accumulate) const {
  ops::grouped_linear_wgrad_(dw, values_of(dy, offsets), values_of(x, offsets), offsets, accumulate, kernels());
}

std::shared_ptr<const MatmulRecipe> make_recipe(const Fp8Options& options, Kernels kernels) {
  if (!options.is_on()) return nullptr;
  return std::make_shared<Fp8Recipe>(options.fp8_format == "hybrid" ? Fp8Format::kHybrid : Fp8Format::kE4m3, kernels);
}

}  // namespace megalith
