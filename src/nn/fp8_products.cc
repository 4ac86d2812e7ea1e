#include "nn/fp8_products.h"

#include <ATen/ATen.h>

#include "core/error.h"
#include "nn/fp8_blocks.h"
#include "ops/gpu/blas.h"
#include "ops/operator.h"

namespace megalith {

namespace {

using ops::gpu::ProductScaling;

bool is_in_eight_bits(const at::Tensor& values) { return values.defined() && at::isFloat8Type(values.scalar_type()); }

struct Factor {
  at::Tensor matrix;  // (rows, sum)
  at::Tensor scale;
  ProductScaling scaling = ProductScaling::kWhole;
};

Factor whole(const at::Tensor& matrix, const Operand& operand) {
  return {matrix, operand.factor.defined() ? operand.factor : fp8_factor(operand.scale)};
}

bool is_one_number(const at::Tensor& scale) { return scale.defined() && scale.dim() == 0; }

// scale  (rows, ceil(columns / 128))
Factor along_sum(const at::Tensor& matrix, const at::Tensor& scale) {
  return {matrix, scale.t().contiguous().reciprocal(), ProductScaling::kAlongSum};
}
Factor in_squares(const at::Tensor& matrix, const at::Tensor& scale) {
  constexpr int64_t kMultiple = 4;
  const int64_t columns = scale.size(1), more = div_up(columns, kMultiple) * kMultiple - columns;
  return {matrix, at::constant_pad_nd(scale.reciprocal(), {0, more}, 1).contiguous(), ProductScaling::kSquares};
}

// c (m, n) = a (m, k) b (n, k)^T
bool multiply(const char* name, const at::Tensor& c, const Factor& a, const Factor& b, const at::Tensor& bias,
              bool accumulate, bool has_fast_sums) {
  if (a.scaling != ProductScaling::kWhole && (a.matrix.size(1) % kFp8Block != 0 || c.size(0) == 0)) return false;
  const ops::OperatorCall call(name, ops::Origin::kLibTorch, {&a.matrix, &b.matrix});
  const at::Tensor b_across = b.matrix.t();
  return ops::gpu::try_product({.c = c,
                                .a = a.matrix,
                                .b = b_across,
                                .accumulate = accumulate,
                                .bias = bias,
                                .scale_a = a.scale,
                                .scale_b = b.scale,
                                .has_fast_sums = has_fast_sums,
                                .scaling_a = a.scaling,
                                .scaling_b = b.scaling});
}

bool has_blocks_along(const at::Tensor& scale, int64_t dim, int64_t size) {
  return scale.defined() && scale.dim() == 2 && size % kFp8Block == 0 && scale.size(dim) == size / kFp8Block;
}

bool is_dtype_of_results(at::ScalarType dtype) {
  return dtype == at::kBFloat16 || dtype == at::kHalf || dtype == at::kFloat;
}

}  // namespace

at::Tensor fp8_factor(const at::Tensor& scale) { return scale.reciprocal(); }

// LibTorch copies bytes in any order.
at::Tensor fp8_transpose(const at::Tensor& values) {
  return values.view(at::kByte).t().contiguous().view(values.scalar_type());
}

std::optional<at::Tensor> try_fp8_forward(const Operand& x, const Operand& w, const at::Tensor& bias) {
  const auto library = ops::gpu::fp8_products_of(w.values.device());
  if (!library.are_made || !is_in_eight_bits(x.values) || !is_dtype_of_results(x.dtype)) return std::nullopt;
  const at::Tensor y = at::empty({x.values.size(0), w.values.size(0)}, x.values.options().dtype(x.dtype));
  // The library adds no bias to fp32 results.
  const at::Tensor within = x.dtype == at::kFloat ? at::Tensor() : bias;
  // As in Transformer Engine.
  constexpr bool kFastSums = true;
  bool is_made = false;
  if (is_one_number(x.scale)) {
    is_made = multiply("fp8_linear_forward", y, whole(x.values, x), whole(w.values, w), within, false, kFastSums);
  } else if (library.take_blocks && has_blocks_along(x.scale, 1, x.values.size(1))) {
    is_made = multiply("fp8_linear_forward", y, along_sum(x.values, x.scale), in_squares(w.values, w.scale), within,
                       false, false);
  }
  if (!is_made) return std::nullopt;
  return bias.defined() && !within.defined() ? y.add_(bias) : y;
}

std::optional<at::Tensor> try_fp8_dgrad(const Operand& dy, const Operand& w) {
  const auto library = ops::gpu::fp8_products_of(w.values.device());
  if (!library.are_made || !is_in_eight_bits(dy.values) || !is_dtype_of_results(dy.dtype)) return std::nullopt;
  const bool is_whole = is_one_number(dy.scale);
  if (!is_whole && !(library.take_blocks && has_blocks_along(dy.scale, 1, dy.values.size(1)))) return std::nullopt;
  const at::Tensor dx = at::empty({dy.values.size(0), w.values.size(1)}, dy.values.options().dtype(dy.dtype));
  at::Tensor weight = w.transposed;
  if (!weight.defined()) weight = library.want_rows_along_sum ? fp8_transpose(w.values) : w.values.t();
  const bool is_made = is_whole
                           ? multiply("fp8_linear_dgrad", dx, whole(dy.values, dy), whole(weight, w), {}, false, false)
                           : multiply("fp8_linear_dgrad", dx, along_sum(dy.values, dy.scale),
                                      in_squares(weight, w.scale.t()), {}, false, false);
  if (!is_made) return std::nullopt;
  return dx;
}

bool try_fp8_wgrad_(const at::Tensor& dw, const Operand& dy, const Operand& x, bool accumulate) {
  const auto library = ops::gpu::fp8_products_of(dw.device());
  const at::Tensor& dy_rows = dy.wgrad_values.defined() ? dy.wgrad_values : dy.values;
  const bool is_dy = dy.transposed.defined() || is_in_eight_bits(dy_rows);
  if (!library.are_made || !is_dy || !(x.transposed.defined() || is_in_eight_bits(x.values))) return false;
  const at::Tensor& dy_scale = dy.wgrad_scale.defined() ? dy.wgrad_scale : dy.scale;
  const bool is_whole = is_one_number(dy_scale);
  const int64_t num_rows = x.transposed.defined() ? x.transposed.size(1) : x.values.size(0);
  if (!is_whole &&
      !(library.take_blocks && has_blocks_along(dy_scale, 0, num_rows) && has_blocks_along(x.scale, 0, num_rows))) {
    return false;
  }
  const auto along_rows = [&](const at::Tensor& there, const at::Tensor& rows) {
    if (there.defined()) return there;
    return library.want_rows_along_sum ? fp8_transpose(rows) : rows.t();
  };
  const at::Tensor a = along_rows(dy.transposed, dy_rows), b = along_rows(x.transposed, x.values);
  if (is_whole) return multiply("fp8_linear_wgrad_", dw, whole(a, dy), whole(b, x), {}, accumulate, false);
  return multiply("fp8_linear_wgrad_", dw, along_sum(a, dy_scale.t()), along_sum(b, x.scale.t()), {}, accumulate,
                  false);
}

}  // namespace megalith
