// NF4: numbers in four bits, of which each block of 64 neighbouring columns of a row shares a scale.
//
//   scale = max |x| of the block        code = the nearest of the 16 values to x / scale        y = value(code) * scale
//
// The values are the quantiles of a normal distribution that bitsandbytes 0.38 and later have in
// create_normal_map(), -1 and 1 at their ends and 0 among them; of two that are as near the lesser is taken. A block of
// zeros is 0.
//
// Scales are held in eight bits ("double quantisation"): a matrix's mean scale is taken off, every 256 scales that
// follow one another share a factor, and code k stands for level k of nf4_scale_levels():
//
//   scale = level(code) * factor + mean        in fp32, product and sum rounded one after the other
//
// Source: Dettmers et al. 2023, arXiv:2305.14314, sections 3 and appendix E; Dettmers et al. 2021, arXiv:2110.02861
// (levels).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "ops/operator.h"

namespace megalith::ops {

inline constexpr int64_t kNf4Block = 64;        // elements of a scale
inline constexpr int64_t kNf4ScaleGroup = 256;  // scales of a factor

struct Nf4Blocks {
  at::Tensor codes;   // (rows, ceil(columns / 2)) uint8; of two columns the first is in the upper half
  at::Tensor scales;  // (rows, ceil(columns / 64)) fp32
};
// x (rows, columns)  bf16 | fp16 | fp32 | fp64, read as fp32; may be strided in rows
// throws UserError for other shapes and dtypes
Nf4Blocks nf4_quantise(const at::Tensor& x, Kernels kernels = Kernels::kFused);

struct Nf4Scales {
  at::Tensor codes;   // (n) uint8
  at::Tensor groups;  // (ceil(n / 256), 2) fp32: factor, mean
};
// scales (n) fp32: those of one matrix, in order. In ATen's operators on every device: it is done once a weight.
Nf4Scales nf4_quantise_scales(const at::Tensor& scales);

// (256) fp32 on the CPU, ascending: zero, one, and to both sides of zero seven ranges of 1, 2, 4, …, 64 levels, each
// evenly spread over a tenth of the one above to it (bitsandbytes' create_dynamic_map()).
at::Tensor nf4_scale_levels();

// What nf4_dequantise() reads of a tensor (rows, columns), whose rows may be those of several matrices.
struct Nf4Matrix {
  at::Tensor codes;         // (rows, ceil(columns / 2)) uint8
  at::Tensor scales;        // (rows, ceil(columns / 64)) uint8
  at::Tensor first_blocks;  // (rows) int32: block b of row r belongs to group (first_blocks[r] + b) / 256
  at::Tensor groups;        // (g, 2) fp32
  at::Tensor levels;        // (256) fp32
};
// y (rows, columns) of dtype bf16 | fp16 | fp32 | fp64: computed in fp32 (fp64: the last product in fp64) and rounded
// once. UserError for other shapes and dtypes; groups that first_blocks names are not checked.
at::Tensor nf4_dequantise(const Nf4Matrix& matrix, int64_t columns, at::ScalarType dtype,
                          Kernels kernels = Kernels::kFused);

struct Nf4Table {
  Nf4Blocks (*quantise)(const at::Tensor& x);
  at::Tensor (*dequantise)(const at::Tensor& codes, const Nf4Matrix& matrix, int64_t columns, at::ScalarType dtype);
};
extern const Nf4Table kNf4Reference;
extern const Operator<Nf4Table> kNf4;

}  // namespace megalith::ops
