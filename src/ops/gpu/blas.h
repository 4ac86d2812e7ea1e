// Matrix products that LibTorch's operators lack, by the cuBLASLt or hipBLASLt that it has loaded: 16-bit operands
// accumulated into fp32, accumulating FP8, choice of the algorithm. A build without its headers refuses every product.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "ops/gpu/gemm_tuning.h"
#include "ops/gpu/product_plan.h"

namespace megalith::ops::gpu {

// c (m, n) = a (m, k) b (k, n) (+ c) (+ bias): one device, strided like transposes and slices.
//
// a, b       bf16, fp16, fp32, or E4M3 and E5M2 mixed (not two E5M2), multiplied by scale_a, scale_b
// c          fp32 or the dtype of a and b; fp32, bf16 or fp16 for FP8
// bias       (n), dtype of c, or undefined
// scale_*    fp32, contiguous, for FP8; undefined: 1
// scaling_*  a scale's block of a (of b likewise, with n for m)
//               kWhole     all of a: one element
//               kAlongSum  1 x 128: (k / 128, m)
//               kSquares   128 x 128: (ceil(m / 128), k / 128), each row padded to a multiple of four
//
// Sums in fp32. Allocates only the library's workspace per stream and, to tune a new shape, operands.
struct BlasProduct {
  const at::Tensor &c, &a, &b;
  bool accumulate = false;
  at::Tensor bias = {};
  at::Tensor scale_a = {}, scale_b = {};
  bool has_fast_sums = false;  // FP8
  ProductScaling scaling_a = ProductScaling::kWhole, scaling_b = ProductScaling::kWhole;
};

// False, without side effects, if the library does not support this product; LibTorch then makes it.
bool try_product(const BlasProduct& product);

// Support of eight-bit operands.
struct Fp8Products {
  bool are_made = false;
  bool are_fnuz = false;             // kFloat8_e4m3fnuz and e5m2fnuz (gfx942), else kFloat8_e4m3fn and e5m2
  bool want_rows_along_sum = false;  // of both: Hopper and Ada
  bool take_blocks = false;          // ProductScaling
};
Fp8Products fp8_products_of(at::Device device);

// For main functions, before the first product; process-wide. UserError if on without a GPU or library, or if the file
// does not fit.
void set_gemm_tuning(const GemmTuningOptions& options, at::Device device);
// Then products that LibTorch could make belong here.
bool chooses_algorithms();
// "cuBLASLt 130100, 37 products of gemm_tuning.json"; "" if off.
std::string gemm_tuning_text();

}  // namespace megalith::ops::gpu
