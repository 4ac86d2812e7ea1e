#include "ops/gpu/product_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace megalith::ops::gpu {
namespace {

bool is_fp8(ProductType type) { return type == ProductType::kFloat8E4m3 || type == ProductType::kFloat8E5m2; }

// The row stride; nothing if column-major.
std::optional<int64_t> rows_apart(const ProductMatrix& x) {
  if (x.column_stride == 1 || x.columns == 1) {
    // A single row's stride is meaningless.
    return x.rows == 1 ? std::max(x.row_stride, x.columns) : x.row_stride;
  }
  return std::nullopt;
}
ProductMatrix transposed(const ProductMatrix& x) {
  return {x.type, x.columns, x.rows, x.column_stride, x.row_stride, x.address};
}

// Largest power of two up to 256 that divides both.
int32_t alignment_of(uint64_t address, int64_t leading, ProductType type) {
  const uint64_t both = address | static_cast<uint64_t>(leading * bytes_of(type)) | 256;
  return static_cast<int32_t>(both & (~both + 1));
}

struct Laid {
  CallMatrix matrix;
  bool is_transposed;  // of x as requested
};
// x^T column-major, or x column-major.
std::optional<Laid> lay(const ProductMatrix& x) {
  const auto make = [&](int64_t rows, int64_t columns, int64_t leading, bool is_transposed) -> std::optional<Laid> {
    if (leading < rows) return std::nullopt;  // columns overlap, or are reversed
    return Laid{{x.type, rows, columns, leading, alignment_of(x.address, leading, x.type)}, is_transposed};
  };
  if (const auto apart = rows_apart(x)) return make(x.columns, x.rows, *apart, false);
  if (const auto apart = rows_apart(transposed(x))) return make(x.rows, x.columns, *apart, true);
  return std::nullopt;
}

// Empty if supported.
std::string refuse_types(const Product& product, const ProductCapability& capability) {
  const ProductType a = product.a.type, b = product.b.type, c = product.c.type;
  if (is_fp8(c)) return "results in eight bits are not made";
  if (is_fp8(a) != is_fp8(b) || (!is_fp8(a) && a != b)) {
    return fmt::format("operands of {} and {} do not multiply", name_of(a), name_of(b));
  }
  if (is_fp8(a)) {
    if (!capability.has_fp8) return "this device has no matrix units for FP8";
    if (a == ProductType::kFloat8E5m2 && b == a) return "two operands of fp8_e5m2 do not multiply";
    if (product.has_bias && c == ProductType::kFloat32) return "a bias is added only to results of 16 bits";
    return "";
  }
  if (c != a && c != ProductType::kFloat32) {
    return fmt::format("operands of {} do not give {}", name_of(a), name_of(c));
  }
  if (product.has_bias && c != a) return "a bias is added only to results of the operands' type";
  return "";
}

std::string refuse_shapes(const Product& product) {
  const ProductMatrix &a = product.a, &b = product.b, &c = product.c;
  if (a.columns != b.rows || a.rows != c.rows || b.columns != c.columns) {
    return fmt::format("({}, {}) times ({}, {}) is not ({}, {})", a.rows, a.columns, b.rows, b.columns, c.rows,
                       c.columns);
  }
  if (a.rows == 0 || a.columns == 0 || b.columns == 0) return "it is empty";
  return "";
}

bool has_blocks(const Product& product) {
  return product.scaling_a != ProductScaling::kWhole || product.scaling_b != ProductScaling::kWhole;
}

// 16 bytes everywhere; before sm_100 both operands' rows along k.
std::string refuse_fp8(const ProductCall& call, const ProductCapability& capability) {
  constexpr int32_t kBytes = 16;
  for (const CallMatrix* matrix : {&call.a, &call.b, &call.c}) {
    if (matrix->alignment < kBytes) return "operands of FP8 begin and lie at multiples of 16 bytes";
  }
  if (call.m % kBytes != 0 || call.n % kBytes != 0 || call.k % kBytes != 0) {
    return fmt::format("sizes of FP8 are multiples of 16, not {} x {} x {}", call.m, call.n, call.k);
  }
  if (!capability.takes_any_fp8_layout && (!call.transposes_a || call.transposes_b)) {
    return "this device multiplies FP8 only when the rows of both operands run along the sum";
  }
  return "";
}

std::string refuse_scales(const Product& product, const ProductCapability& capability) {
  const bool is_squared = product.scaling_a == ProductScaling::kSquares, is_whole = !has_blocks(product);
  if (is_whole) return "";
  if (!is_fp8(product.a.type)) return "scales of blocks are for FP8";
  if (!capability.has_block_scales) return "this device's library has no scales of blocks";
  if (product.scaling_a == ProductScaling::kWhole || product.scaling_b == ProductScaling::kWhole) {
    return "both operands have scales of blocks, or neither";
  }
  if (is_squared && product.scaling_b == ProductScaling::kSquares) return "two operands in squares do not multiply";
  constexpr int64_t kBlock = 128;
  if (product.a.columns % kBlock != 0) {
    return fmt::format("the sum of operands in blocks has a multiple of {} terms, not {}", kBlock, product.a.columns);
  }
  return "";
}

}  // namespace

const char* name_of(ProductType type) {
  switch (type) {
    case ProductType::kFloat32:
      return "fp32";
    case ProductType::kBFloat16:
      return "bf16";
    case ProductType::kFloat16:
      return "fp16";
    case ProductType::kFloat8E4m3:
      return "fp8_e4m3";
    case ProductType::kFloat8E5m2:
      return "fp8_e5m2";
  }
  return "unknown";
}

int64_t bytes_of(ProductType type) {
  if (is_fp8(type)) return 1;
  return type == ProductType::kFloat32 ? 4 : 2;
}

ProductPlan plan_product(const Product& product, const ProductCapability& capability) {
  ProductPlan plan{};
  plan.refusal = refuse_shapes(product);
  if (plan.refusal.empty()) plan.refusal = refuse_types(product, capability);
  if (!plan.refusal.empty()) return plan;
  const auto a = lay(product.b), b = lay(product.a), c = lay(product.c);
  if (!a || !b || !c || c->is_transposed) {
    plan.refusal = "rows of a matrix must lie in one piece, and not within each other";
    return plan;
  }
  plan.call = {.m = product.b.columns,
               .n = product.a.rows,
               .k = product.a.columns,
               .transposes_a = a->is_transposed,
               .transposes_b = b->is_transposed,
               .a = a->matrix,
               .b = b->matrix,
               .c = c->matrix,
               .accumulate = product.accumulate,
               .has_bias = product.has_bias,
               .has_fast_sums = product.has_fast_sums && is_fp8(product.a.type) && !has_blocks(product),
               .scaling_a = product.scaling_b,
               .scaling_b = product.scaling_a};
  if (is_fp8(product.a.type)) plan.refusal = refuse_fp8(plan.call, capability);
  if (plan.refusal.empty()) plan.refusal = refuse_scales(product, capability);
  return plan;
}

std::string name_of(const ProductCall& call) {
  const auto matrix = [](const char* letter, const CallMatrix& x) {
    return fmt::format(" {} {}/{}/{}", letter, name_of(x.type), x.leading, x.alignment);
  };
  const auto scales = [](const char* letter, ProductScaling scaling) {
    if (scaling == ProductScaling::kWhole) return std::string();
    return fmt::format(" {} in {}", letter, scaling == ProductScaling::kAlongSum ? "1x128" : "128x128");
  };
  return fmt::format("{}{} {}x{}x{}{}{}{}{}{}{}{}{}", call.transposes_a ? 'T' : 'N', call.transposes_b ? 'T' : 'N',
                     call.m, call.n, call.k, matrix("a", call.a), matrix("b", call.b), matrix("c", call.c),
                     call.accumulate ? " beta1" : "", call.has_bias ? " bias" : "", call.has_fast_sums ? " fast" : "",
                     scales("a", call.scaling_a), scales("b", call.scaling_b));
}

}  // namespace megalith::ops::gpu
