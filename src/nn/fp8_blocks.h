// Eight-bit matrices (fp8_recipe.h) with a scale per block, max_fp8 / amax rounded down to a power of two; 1 if amax is
// 0 or infinite. Products sum along blocks' long side:
//
//   along rows   (rows, ceil(columns / 128))             inputs and gradients
//   down columns (ceil(rows / 128), columns)             the same, for the weight's gradient
//   squares      (ceil(rows / 128), ceil(columns / 128)) weights
//
// Experts' rows are sorted by expert (offsets), and blocks down columns never span two; their weights and scales have a
// leading expert dim. Sources: arXiv:2412.19437 (3.3.2); Transformer Engine's Float8BlockScaling (powers of two).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace megalith {

inline constexpr int64_t kFp8Block = 128;

// amax over dims (none: all), in x's dtype; NaN if any is. One pass on a GPU.
at::Tensor largest_size(const at::Tensor& x, at::IntArrayRef dims);

at::Tensor scales_of_blocks(const at::Tensor& amax, double largest);
at::Tensor amax_along_rows(const at::Tensor& x);
at::Tensor amax_down_columns(const at::Tensor& x, const at::Tensor& offsets);
// num_experts 0: none
at::Tensor amax_of_squares(const at::Tensor& weight, int64_t num_experts);

// For ops/fp8_cast: experts' weights (e, R, C) as (e rows, C); blocks down columns as an entry per row.
at::Tensor scales_of_rows(const at::Tensor& scale, int64_t rows_of_expert);
at::Tensor scales_of_rows_of_experts(const at::Tensor& scale, const at::Tensor& offsets, int64_t num_rows);

// tensor * scale, in the scale's dtype. offsets: for experts' blocks down columns. num_parts: of rows, each of which
// begins new blocks.
at::Tensor scaled_blocks(const at::Tensor& tensor, const at::Tensor& scale, const at::Tensor& offsets,
                         int64_t num_parts);

}  // namespace megalith
