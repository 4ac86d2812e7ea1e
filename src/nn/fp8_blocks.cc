#include "nn/fp8_blocks.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "core/error.h"

namespace megalith {

namespace {

at::ScalarType dtype_of_scales(at::ScalarType dtype) { return dtype == at::kDouble ? at::kDouble : at::kFloat; }

int64_t num_fp8_blocks(int64_t size) { return div_up(size, kFp8Block); }

// Zero-pads to whole blocks; x itself if it fits.
at::Tensor padded_to_blocks(const at::Tensor& x, bool rows, bool columns) {
  const int64_t more_rows = rows ? num_fp8_blocks(x.size(-2)) * kFp8Block - x.size(-2) : 0;
  const int64_t more_columns = columns ? num_fp8_blocks(x.size(-1)) * kFp8Block - x.size(-1) : 0;
  if (more_rows == 0 && more_columns == 0) return x.contiguous();
  return at::constant_pad_nd(x, {0, more_columns, 0, more_rows});
}

at::Tensor amax_without_data(const at::Tensor& x, at::IntArrayRef shape) {
  return at::empty(shape, x.options().dtype(dtype_of_scales(x.scalar_type())));
}

// Clears a positive number's significand.
at::Tensor power_of_two_below(const at::Tensor& x) {
  if (x.scalar_type() == at::kDouble) return x.view(at::kLong).bitwise_and(0x7FF0000000000000).view(at::kDouble);
  return x.view(at::kInt).bitwise_and(0x7F800000).view(at::kFloat);
}

// For blocks down columns. An expert's first block is offset / 128 + its number, a bound on all before it: the host
// need not read counts.
at::Tensor blocks_of_rows(const at::Tensor& offsets, int64_t num_rows, at::Device device) {
  const auto numbers = at::TensorOptions(offsets.device()).dtype(at::kLong);
  const at::Tensor experts = at::arange(offsets.size(0) - 1, numbers);
  const at::Tensor of_rows = experts.repeat_interleave(offsets.diff(), 0, num_rows);
  const at::Tensor first_row = offsets.index_select(0, of_rows);
  const auto in_blocks = [](const at::Tensor& rows) { return rows.div(kFp8Block, "floor"); };
  return (in_blocks(first_row) + of_rows + in_blocks(at::arange(num_rows, numbers) - first_row)).to(device);
}

at::Tensor spread_blocks(const at::Tensor& scale, int64_t dim, int64_t size) {
  if (scale.size(dim) == size) return scale;
  const int64_t count = scale.size(dim);
  std::vector<int64_t> wider = scale.sizes().vec(), joined = wider;
  wider.insert(wider.begin() + dim + 1, kFp8Block);
  joined[static_cast<size_t>(dim)] = count * kFp8Block;
  return scale.unsqueeze(dim + 1).expand(wider).reshape(joined).narrow(dim, 0, size);
}

}  // namespace

at::Tensor largest_size(const at::Tensor& x, at::IntArrayRef dims) {
  // On the CPU LibTorch's norm is scalar.
  if (x.is_cpu()) return dims.empty() ? x.abs().amax() : x.abs().amax(dims);
  const auto over = dims.empty() ? at::OptionalIntArrayRef() : at::OptionalIntArrayRef(dims);
  return at::linalg_vector_norm(x, std::numeric_limits<double>::infinity(), over);
}

at::Tensor scales_of_blocks(const at::Tensor& amax, double largest) {
  if (amax.is_meta()) return at::empty_like(amax);
  constexpr double kMost = std::numeric_limits<float>::max();
  const at::Tensor scale = power_of_two_below((largest / amax).clamp_max_(kMost));
  const at::Tensor plain = at::where(amax.eq(0).logical_or(amax.isinf()), at::ones_like(scale), scale);
  return at::where(amax.isnan(), amax, plain);
}

at::Tensor amax_along_rows(const at::Tensor& x) {
  if (x.is_meta()) return amax_without_data(x, {x.size(0), num_fp8_blocks(x.size(1))});
  const at::Tensor blocks = padded_to_blocks(x, false, true).view({x.size(0), num_fp8_blocks(x.size(1)), kFp8Block});
  return largest_size(blocks, {2}).to(dtype_of_scales(x.scalar_type()));
}

at::Tensor amax_down_columns(const at::Tensor& x, const at::Tensor& offsets) {
  const at::ScalarType wide = dtype_of_scales(x.scalar_type());
  if (!offsets.defined()) {
    if (x.is_meta()) return amax_without_data(x, {num_fp8_blocks(x.size(0)), x.size(1)});
    const at::Tensor blocks = padded_to_blocks(x, true, false).view({num_fp8_blocks(x.size(0)), kFp8Block, x.size(1)});
    return largest_size(blocks, {1}).to(wide);
  }
  const int64_t most = x.size(0) / kFp8Block + offsets.size(0) - 1;
  if (x.is_meta()) return amax_without_data(x, {most, x.size(1)});
  const at::Tensor amax = at::zeros({most, x.size(1)}, x.options().dtype(wide));
  if (x.numel() == 0) return amax;
  const at::Tensor blocks = blocks_of_rows(offsets, x.size(0), x.device());
  return amax.scatter_reduce(0, blocks.unsqueeze(1).expand_as(x), x.abs().to(wide), "amax");
}

at::Tensor amax_of_squares(const at::Tensor& weight, int64_t num_experts) {
  const int64_t experts = std::max<int64_t>(num_experts, 1), columns = weight.size(1);
  const int64_t rows = weight.size(0) / experts;
  if (weight.is_meta()) {
    std::vector<int64_t> shape = {num_fp8_blocks(rows), num_fp8_blocks(columns)};
    if (num_experts > 0) shape.insert(shape.begin(), num_experts);
    return amax_without_data(weight, shape);
  }
  const at::Tensor blocks = padded_to_blocks(weight.view({experts, rows, columns}), true, true)
                                .view({experts, num_fp8_blocks(rows), kFp8Block, num_fp8_blocks(columns), kFp8Block});
  const at::Tensor amax = largest_size(blocks, {2, 4}).to(dtype_of_scales(weight.scalar_type()));
  return num_experts > 0 ? amax : amax.squeeze(0);
}

at::Tensor scales_of_rows(const at::Tensor& scale, int64_t rows_of_expert) {
  return spread_blocks(scale, 1, rows_of_expert).reshape({scale.size(0) * rows_of_expert, scale.size(2)});
}

at::Tensor scales_of_rows_of_experts(const at::Tensor& scale, const at::Tensor& offsets, int64_t num_rows) {
  return scale.index_select(0, blocks_of_rows(offsets, num_rows, scale.device()));
}

at::Tensor scaled_blocks(const at::Tensor& tensor, const at::Tensor& scale, const at::Tensor& offsets,
                         int64_t num_parts) {
  const at::Tensor wide = tensor.to(scale.scalar_type());
  if (tensor.is_meta()) return wide;
  if (scale.dim() == 3) {  // experts' weights
    const at::Tensor apart = wide.view({scale.size(0), div_exact(wide.size(0), scale.size(0)), wide.size(1)});
    return (apart * spread_blocks(spread_blocks(scale, 1, apart.size(1)), 2, apart.size(2))).view(wide.sizes());
  }
  if (offsets.defined()) {
    return wide * scale.index_select(0, blocks_of_rows(offsets, tensor.size(0), tensor.device()));
  }
  const at::Tensor parts = wide.view({num_parts, div_exact(wide.size(0), num_parts), wide.size(1)});
  const at::Tensor scales = scale.view({num_parts, div_exact(scale.size(0), num_parts), scale.size(1)});
  return (parts * spread_blocks(spread_blocks(scales, 1, parts.size(1)), 2, parts.size(2))).view(wide.sizes());
}

}  // namespace megalith
