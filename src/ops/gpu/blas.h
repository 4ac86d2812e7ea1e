// Matrix products by cuBLASLt, or hipBLASLt, called directly: for what LibTorch's operators do not offer (16-bit
// operands summed into an fp32 matrix where it lies, on every vendor's chips; FP8 that accumulates; the choice of the
// algorithm).
//
// The library is the one that LibTorch has loaded. A build without its headers has none, and every product is refused.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "ops/gpu/gemm_tuning.h"
#include "ops/gpu/product_plan.h"

namespace megalith::ops::gpu {

// c (m, n) = a (m, k) b (k, n) (+ c) (+ bias): tensors of one device, as strided as transposes and slices are.
//
// a, b       bf16, fp16, fp32, or E4M3 and E5M2 mixed (not two E5M2); those of eight bits multiplied by scale_a,
// scale_b c          fp32 or the dtype of a and b; fp32, bf16 or fp16 for FP8 bias       (n), dtype of c, or undefined
// scale_*    fp32 on the device, contiguous, only for FP8; undefined: 1
// scaling_*  what belongs to a number of scale_a; of scale_b likewise, with n in the place of m
//              kWhole     all of a: one element
//              kAlongSum  1 x 128 of it: (k / 128, m)
//              kSquares   128 x 128 of it: (ceil(m / 128), k / 128), each row padded to a multiple of four
//
// Sums are in fp32. Nothing is allocated but the library's workspace, once for a stream, and, while gemm_tuning tunes a
// new shape, operands to time it with.
struct BlasProduct {
  const at::Tensor &c, &a, &b;
  bool accumulate = false;
  at::Tensor bias = {};
  at::Tensor scale_a = {}, scale_b = {};
  bool has_fast_sums = false;  // FP8
  ProductScaling scaling_a = ProductScaling::kWhole, scaling_b = ProductScaling::kWhole;
};

// False, and nothing has happened, when there is no library or it does not take this product: then it is LibTorch's.
bool try_product(const BlasProduct& product);

// What the library does with operands of eight bits (E4M3 and E5M2 as kFloat8_e4m3fn and kFloat8_e5m2 have them).
struct Fp8Products {
  bool are_made = false;
  bool want_rows_along_sum = false;  // of both operands: Hopper and Ada
  bool take_blocks = false;          // ProductScaling
};
Fp8Products fp8_products_of(at::Device device);

// For main functions, before the first product: belongs to the process, as LibTorch's handles of these libraries do.
// UserError when it is on, and the device is no GPU or has no library, or the file does not fit.
void set_gemm_tuning(const GemmTuningOptions& options, at::Device device);
// Whether products that LibTorch has too are to be made here, because their algorithms are chosen.
bool chooses_algorithms();
// "cuBLASLt 130100, 37 products of gemm_tuning.json"; empty when it is off.
std::string gemm_tuning_text();

}  // namespace megalith::ops::gpu
