// Eight-bit matrices with a scale per block of elements ("blockwise").
//
//   scale  = max_fp8 / amax of the block, rounded down to a power of two     1 if amax is 0 or infinite
//   values = fp8(clamp(x * scale))
//
// Each dim of a scale tensor has an entry per index, or per 128 of them (the last may be short). Products sum along the
// blocks' long side:
//
//   along rows   (rows, ceil(columns / 128))             inputs and gradients, for products that sum over columns
//   down columns (ceil(rows / 128), columns)             the same, for the weight's product, which sums over rows
//   squares      (ceil(rows / 128), ceil(columns / 128)) weights, which both products read
//
// Experts' rows are sorted by expert (offsets); no block down a column spans two. Their weights and scales have a
// leading expert dim.
// Source: DeepSeek-AI 2024, arXiv:2412.19437 (3.3.2); powers of two as in Transformer Engine's Float8BlockScaling.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace megalith {

inline constexpr int64_t kFp8Block = 128;

// amax over these dims (none: all), in x's dtype; NaN if there is one. A GPU reads x once without copying.
at::Tensor largest_size(const at::Tensor& x, at::IntArrayRef dims);

at::Tensor scales_of_blocks(const at::Tensor& amax, double largest);
at::Tensor amax_along_rows(const at::Tensor& x);
at::Tensor amax_down_columns(const at::Tensor& x, const at::Tensor& offsets);
// num_experts 0: a matrix without experts
at::Tensor amax_of_squares(const at::Tensor& weight, int64_t num_experts);

// The same scales in ops/fp8_cast's shapes: experts' weights (e, R, C) as (e rows, C), and blocks down columns of
// experts' rows as an entry per row.
at::Tensor scales_of_rows(const at::Tensor& scale, int64_t rows_of_expert);
at::Tensor scales_of_rows_of_experts(const at::Tensor& scale, const at::Tensor& offsets, int64_t num_rows);

// tensor times its blocks' scales, in the scale's dtype.
//   offsets    for scales down columns with experts' blocks; otherwise undefined
//   num_parts  of rows, each of which begins new blocks
at::Tensor scaled_blocks(const at::Tensor& tensor, const at::Tensor& scale, const at::Tensor& offsets,
                         int64_t num_parts);

}  // namespace megalith
