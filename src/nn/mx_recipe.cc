#include "nn/mx_recipe.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "core/error.h"
#include "ops/linear/linear.h"

namespace megalith {
namespace {

at::Tensor wide(const at::Tensor& x) { return x.scalar_type() == at::kDouble ? x : x.to(at::kFloat); }

at::Tensor padded(const at::Tensor& x, int64_t row_multiple, int64_t column_multiple) {
  const int64_t rows = div_up(x.size(0), row_multiple) * row_multiple - x.size(0);
  const int64_t columns = div_up(x.size(1), column_multiple) * column_multiple - x.size(1);
  return rows == 0 && columns == 0 ? x.contiguous() : at::constant_pad_nd(x, {0, columns, 0, rows});
}

// blocks: any shape; dims: those of a block.
at::Tensor rounded(const at::Tensor& blocks, at::IntArrayRef dims, const MxFormat& format) {
  const at::Tensor amax = blocks.abs().amax(dims, /*keepdim=*/true);
  const at::Tensor is_finite = amax.lt(std::numeric_limits<double>::infinity());
  const at::Tensor known = at::where(is_finite, amax, at::zeros_like(amax));
  // frexp's significands are in [1/2, 1): half a digit more may carry the largest to 1.
  const auto [significand, exponent] = at::frexp(known);
  const at::Tensor carries = significand.ge(1 - std::ldexp(1.0, -static_cast<int>(format.digits) - 2));
  const at::Tensor power = (exponent + carries - (format.largest_power + 1)).clamp_min(-127);
  const at::Tensor scaled = at::ldexp(blocks, -power);
  const at::Tensor digit = std::get<1>(at::frexp(scaled)).clamp_min(format.least + 1) - (format.digits + 1);
  const at::Tensor values = at::ldexp(at::ldexp(scaled, -digit).round_(), digit);
  return at::where(is_finite, at::ldexp(values.clamp(-format.largest, format.largest), power), blocks);
}

at::Tensor along_rows(const at::Tensor& x, const MxFormat& format) {
  const at::Tensor whole = padded(x, 1, kMxBlock);
  return rounded(whole.view({whole.size(0), -1, kMxBlock}), {2}, format).view(whole.sizes()).narrow(1, 0, x.size(1));
}

// Sylvester's, over its root: its own inverse.
at::Tensor hadamard(const at::Tensor& like) {
  at::Tensor h = at::ones({1, 1}, like.options());
  while (h.size(0) < kHadamardSize) h = at::cat({at::cat({h, h}, 1), at::cat({h, -h}, 1)}, 0);
  return h / std::sqrt(static_cast<double>(kHadamardSize));
}

}  // namespace

at::Tensor mx_along_rows(const at::Tensor& x, const MxFormat& format) {
  if (x.is_meta() || x.numel() == 0) return at::empty_like(x);
  return along_rows(wide(x), format).to(x.scalar_type());
}

at::Tensor mx_in_squares(const at::Tensor& x, const MxFormat& format) {
  if (x.is_meta() || x.numel() == 0) return at::empty_like(x);
  const at::Tensor whole = padded(wide(x), kMxBlock, kMxBlock);
  const at::Tensor blocks = whole.view({whole.size(0) / kMxBlock, kMxBlock, whole.size(1) / kMxBlock, kMxBlock});
  const at::Tensor values = rounded(blocks, {1, 3}, format).view(whole.sizes());
  return values.narrow(0, 0, x.size(0)).narrow(1, 0, x.size(1)).to(x.scalar_type()).contiguous();
}

at::Tensor mx_down_columns(const at::Tensor& x, const MxFormat& format, bool is_turned) {
  const at::Tensor whole = is_turned && !x.is_meta() ? padded(x, kHadamardSize, 1) : x;
  if (x.is_meta() || x.numel() == 0) return at::empty_like(x);
  at::Tensor turned = wide(whole).t().contiguous();
  if (is_turned) turned = turned.view({-1, kHadamardSize}).mm(hadamard(turned)).view(turned.sizes());
  return along_rows(turned, format).t().to(x.scalar_type()).contiguous();
}

std::shared_ptr<const MatmulRecipe> MxRecipe::for_chunk() const {
  return std::make_shared<const MxRecipe>(settings_, kernels());
}

bool MxRecipe::leaves_plain(int64_t layer, int64_t num_layers) const {
  return layer < settings_.num_plain_first || layer >= num_layers - settings_.num_plain_last;
}

Operand MxRecipe::take(const at::Tensor& tensor, OperandRole role, const OperandScope& scope) const {
  MEGALITH_CHECK(!scope.offsets.defined() && scope.num_experts == 0, "{}: experts in microscaling formats",
                 scope.label);
  if (role == OperandRole::kWeight) return {mx_in_squares(tensor, settings_.format)};
  const bool is_gradient = role == OperandRole::kGradient;
  Operand operand{mx_along_rows(tensor, is_gradient ? settings_.of_gradients : settings_.format)};
  if (is_gradient) operand.wgrad_values = tensor;
  return operand;
}

void MxRecipe::wgrad_(const at::Tensor& dw, const Operand& dy, const Operand& x, bool accumulate) const {
  if (!settings_.rounds_wgrad) return ops::linear_wgrad_(dw, dy.wgrad_values, x.values, accumulate, kernels());
  ops::linear_wgrad_(dw, mx_down_columns(dy.wgrad_values, settings_.of_gradients, settings_.turns_wgrad),
                     mx_down_columns(x.values, settings_.format, settings_.turns_wgrad), accumulate, kernels());
}

}  // namespace megalith
