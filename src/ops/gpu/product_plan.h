// Maps a matrix product to a call of cuBLASLt or hipBLASLt, as a pure function, to test without a GPU.
//
// The libraries' matrices are column-major: a row-major (r, c) is its column-major transpose with the same leading
// dimension, so C = A B becomes C^T = B^T A^T, with our B as the call's A.
#pragma once

#include <compare>
#include <cstdint>
#include <string>

namespace megalith::ops::gpu {

enum class ProductType : int32_t { kFloat32, kBFloat16, kFloat16, kFloat8E4m3, kFloat8E5m2 };
const char* name_of(ProductType type);
int64_t bytes_of(ProductType type);

// (r, c) is at r row_stride + c column_stride; one stride is 1.
struct ProductMatrix {
  ProductType type;
  int64_t rows, columns;
  int64_t row_stride, column_stride;
  uint64_t address;
};

// A scale is for the whole operand, 128 numbers along k, or 128 x 128.
enum class ProductScaling : int32_t { kWhole, kAlongSum, kSquares };

// C (m, n) = A (m, k) B (k, n) (+ C) (+ bias (n) of C's type).
struct Product {
  ProductMatrix a, b, c;
  bool accumulate = false;
  bool has_bias = false;
  bool has_fast_sums = false;  // FP8: reduced precision, for forward passes; not with block scales
  ProductScaling scaling_a = ProductScaling::kWhole, scaling_b = ProductScaling::kWhole;
};

struct ProductCapability {
  bool has_fp8 = false;
  bool takes_any_fp8_layout = false;  // else both operands' rows run along k
  bool has_block_scales = false;      // FP8's: cuBLASLt 12.9 on Hopper
};

// (rows, columns), column-major, `leading` apart.
struct CallMatrix {
  ProductType type;
  int64_t rows, columns, leading;
  int32_t alignment;  // of all columns, in bytes: a power of two up to 256
  auto operator<=>(const CallMatrix&) const = default;
};

// D (m, n) = op(A) op(B) + beta C, column-major, summed in fp32; D replaces C.
struct ProductCall {
  int64_t m, n, k;
  bool transposes_a, transposes_b;
  CallMatrix a, b, c;
  bool accumulate;  // beta is 1
  bool has_bias;    // to each column
  bool has_fast_sums;
  ProductScaling scaling_a = ProductScaling::kWhole, scaling_b = ProductScaling::kWhole;
  auto operator<=>(const ProductCall&) const = default;
};

struct ProductPlan {
  ProductCall call;
  std::string refusal;  // or empty
  explicit operator bool() const { return refusal.empty(); }
};
ProductPlan plan_product(const Product& product, const ProductCapability& capability);

// For files: "TN 4096x8192x1024 a bf16/1024/16 b bf16/1024/16 c fp32/4096/16 beta1".
std::string name_of(const ProductCall& call);

}  // namespace megalith::ops::gpu
