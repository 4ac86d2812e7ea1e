// Eight-bit values of matrices with a scale for each block of elements ("blockwise").
//
//   scale  = max_fp8 / amax of the block, rounded down to a power of two     1 where amax is 0 or infinite
//   values = fp8(clamp(x * scale))
//
// A scale tensor has, in each dim, an entry for every index or one for every 128 of them, of which the last may have
// fewer. A product adds along the blocks' long side, so three shapes of block serve:
//
//   along rows   (rows, ceil(columns / 128))             inputs and gradients, for products that add over columns
//   down columns (ceil(rows / 128), columns)             the same, for the weight's product, which adds over rows
//   squares      (ceil(rows / 128), ceil(columns / 128)) weights, which both products read
//
// Experts' rows are sorted by expert (offsets), and no block down a column has rows of two; their weights have a dim
// of experts in front, (e, ceil(rows / 128), ceil(columns / 128)).
// Source: DeepSeek-AI 2024, arXiv:2412.19437 (3.3.2); powers of two as Transformer Engine's Float8BlockScaling has
// them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace megalith {

inline constexpr int64_t kFp8Block = 128;

// The largest absolute value over these dims (none: over all), in x's dtype; NaN where there is one. A GPU reads x once
// and makes no copy.
at::Tensor largest_size(const at::Tensor& x, at::IntArrayRef dims);

// The scales of wide numbers (fp32, or fp64 for fp64).
at::Tensor scales_of_blocks(const at::Tensor& amax, double largest);
at::Tensor amax_along_rows(const at::Tensor& x);
at::Tensor amax_down_columns(const at::Tensor& x, const at::Tensor& offsets);
// num_experts 0: a matrix of no experts
at::Tensor amax_of_squares(const at::Tensor& weight, int64_t num_experts);

// The same scales in shapes that ops/fp8_cast reads: experts' weights (e, R, C) as (e rows, C), and blocks down columns
// of experts' rows as an entry for each row.
at::Tensor scales_of_rows(const at::Tensor& scale, int64_t rows_of_expert);
at::Tensor scales_of_rows_of_experts(const at::Tensor& scale, const at::Tensor& offsets, int64_t num_rows);

// tensor times the scale of each element's block, in the scale's dtype.
//   offsets    where the scales go down columns and the blocks are experts'; undefined elsewhere
//   num_parts  of whose rows blocks begin anew
at::Tensor scaled_blocks(const at::Tensor& tensor, const at::Tensor& scale, const at::Tensor& offsets,
                         int64_t num_parts);

}  // namespace megalith
