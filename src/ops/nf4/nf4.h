// NF4: four-bit numbers, with a scale per block of 64 neighbouring columns of a row.
//
//   scale = max |x| of the block        code = the nearest of the 16 values to x / scale        y = value(code) * scale
//
// The values are a normal distribution's quantiles, from -1 to 1 with 0 among them (create_normal_map() of bitsandbytes
// 0.38 and later); ties go to the lesser. A block of zeros is 0.
//
// Scales have eight bits ("double quantisation"): less their mean, every 256 consecutive ones share a factor; code k is
// level k of nf4_scale_levels():
//
//   scale = level(code) * factor + mean        in fp32, product and sum rounded in turn
//
// Sources: arXiv:2305.14314 (QLoRA), section 3 and appendix E; arXiv:2110.02861 (levels).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "ops/operator.h"

namespace megalith::ops {

inline constexpr int64_t kNf4Block = 64;        // elements per scale
inline constexpr int64_t kNf4ScaleGroup = 256;  // scales per factor

struct Nf4Blocks {
  at::Tensor codes;   // (rows, ceil(columns / 2)) uint8; a byte's first column is in the upper half
  at::Tensor scales;  // (rows, ceil(columns / 64)) fp32
};
// x (rows, columns) floating, read as fp32; rows may be strided
Nf4Blocks nf4_quantise(const at::Tensor& x, Kernels kernels = Kernels::kFused);

struct Nf4Scales {
  at::Tensor codes;   // (n) uint8
  at::Tensor groups;  // (ceil(n / 256), 2) fp32: factor, mean
};
// scales (n) fp32: one matrix's, in order. Always the reference: done once per weight.
Nf4Scales nf4_quantise_scales(const at::Tensor& scales);

// (256) fp32 on the CPU, ascending: zero, one, and on both sides of zero seven ranges of 1, 2, 4, …, 64 levels, each
// spread evenly from a tenth of the one above up to it (bitsandbytes' create_dynamic_map()).
at::Tensor nf4_scale_levels();

// nf4_dequantise()'s input for a (rows, columns) tensor, which may hold several matrices' rows.
struct Nf4Matrix {
  at::Tensor codes;         // (rows, ceil(columns / 2)) uint8
  at::Tensor scales;        // (rows, ceil(columns / 64)) uint8
  at::Tensor first_blocks;  // (rows) int32: row r's block b is in group (first_blocks[r] + b) / 256
  at::Tensor groups;        // (g, 2) fp32
  at::Tensor levels;        // (256) fp32
};
// y (rows, columns), of a floating dtype: computed in fp32 (the last product wide) and rounded once. first_blocks'
// groups are not checked.
at::Tensor nf4_dequantise(const Nf4Matrix& matrix, int64_t columns, at::ScalarType dtype,
                          Kernels kernels = Kernels::kFused);

struct Nf4Table {
  Nf4Blocks (*quantise)(const at::Tensor& x);
  at::Tensor (*dequantise)(const at::Tensor& codes, const Nf4Matrix& matrix, int64_t columns, at::ScalarType dtype);
};
extern const Nf4Table kNf4Reference;
extern const Operator<Nf4Table> kNf4;

}  // namespace megalith::ops
