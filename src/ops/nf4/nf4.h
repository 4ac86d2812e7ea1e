// NF4: numbers in four bits, with a scale per block of 64 neighbouring columns of a row.
//
//   scale = max |x| of the block        code = the nearest of the 16 values to x / scale        y = value(code) * scale
//
// The values are quantiles of a normal distribution, from -1 to 1 with 0 among them (create_normal_map() of
// bitsandbytes 0.38 and later); ties go to the lesser. A block of zeros is 0.
//
// Scales are in eight bits ("double quantisation"): the matrix's mean scale is subtracted, every 256 consecutive scales
// share a factor, and code k is level k of nf4_scale_levels():
//
//   scale = level(code) * factor + mean        in fp32, product and sum rounded in turn
//
// Source: Dettmers et al. 2023, arXiv:2305.14314, sections 3 and appendix E; Dettmers et al. 2021, arXiv:2110.02861
// (levels).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "ops/operator.h"

namespace megalith::ops {

inline constexpr int64_t kNf4Block = 64;        // elements per scale
inline constexpr int64_t kNf4ScaleGroup = 256;  // scales per factor

struct Nf4Blocks {
  at::Tensor codes;   // (rows, ceil(columns / 2)) uint8; the first of two columns is in the upper half
  at::Tensor scales;  // (rows, ceil(columns / 64)) fp32
};
// x (rows, columns)  bf16 | fp16 | fp32 | fp64, read as fp32; may be strided in rows
// throws UserError for other shapes and dtypes
Nf4Blocks nf4_quantise(const at::Tensor& x, Kernels kernels = Kernels::kFused);

struct Nf4Scales {
  at::Tensor codes;   // (n) uint8
  at::Tensor groups;  // (ceil(n / 256), 2) fp32: factor, mean
};
// scales (n) fp32: one matrix's, in order. Always in ATen's operators: done once per weight.
Nf4Scales nf4_quantise_scales(const at::Tensor& scales);

// (256) fp32 on the CPU, ascending: zero, one, and on both sides of zero seven ranges of 1, 2, 4, …, 64 levels, each
// evenly spread from a tenth of the one above up to it (bitsandbytes' create_dynamic_map()).
at::Tensor nf4_scale_levels();

// nf4_dequantise()'s input for a tensor (rows, columns), whose rows may be of several matrices.
struct Nf4Matrix {
  at::Tensor codes;         // (rows, ceil(columns / 2)) uint8
  at::Tensor scales;        // (rows, ceil(columns / 64)) uint8
  at::Tensor first_blocks;  // (rows) int32: block b of row r belongs to group (first_blocks[r] + b) / 256
  at::Tensor groups;        // (g, 2) fp32
  at::Tensor levels;        // (256) fp32
};
// y (rows, columns) of dtype bf16 | fp16 | fp32 | fp64: computed in fp32 (fp64: the last product in fp64) and rounded
// once. UserError for other shapes and dtypes; the groups in first_blocks are not checked.
at::Tensor nf4_dequantise(const Nf4Matrix& matrix, int64_t columns, at::ScalarType dtype,
                          Kernels kernels = Kernels::kFused);

struct Nf4Table {
  Nf4Blocks (*quantise)(const at::Tensor& x);
  at::Tensor (*dequantise)(const at::Tensor& codes, const Nf4Matrix& matrix, int64_t columns, at::ScalarType dtype);
};
extern const Nf4Table kNf4Reference;
extern const Operator<Nf4Table> kNf4;

}  // namespace megalith::ops
