// plan_product: every call, executed as the library would (matrices in columns, leading dimensions, transposes), is the
// product that was asked for; what the libraries do not take is refused in words.
#include "ops/gpu/product_plan.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace megalith::ops::gpu::product_plan_test {
namespace {

constexpr ProductCapability kHopper{.has_fp8 = true, .takes_any_fp8_layout = false};
constexpr ProductCapability kBlackwell{.has_fp8 = true, .takes_any_fp8_layout = true};
constexpr ProductCapability kHopperInBlocks{.has_fp8 = true, .takes_any_fp8_layout = false, .has_block_scales = true};
constexpr ProductCapability kAmpere{.has_fp8 = false, .takes_any_fp8_layout = false};

// Layout of a matrix in memory.
struct Lie {
  bool is_transposed;
  int64_t space;  // elements between rows, or columns
};

// Numbers of a matrix in memory that is as large as it must be.
struct Stored {
  ProductMatrix matrix;
  std::vector<double> memory;

  Stored(ProductType type, int64_t rows, int64_t columns, const Lie& lie, std::mt19937* random) {
    const int64_t length = (lie.is_transposed ? rows : columns) + lie.space;
    matrix = {type, rows, columns, lie.is_transposed ? 1 : length, lie.is_transposed ? length : 1, 1024};
    memory.resize(static_cast<size_t>((lie.is_transposed ? columns : rows) * length));
    if (random == nullptr) return;
    for (double& number : memory) number = static_cast<double>((*random)() % 17) - 8;
  }
  double& at(int64_t row, int64_t column) {
    return memory[static_cast<size_t>(row * matrix.row_stride + column * matrix.column_stride)];
  }
};

// D = op(A) op(B) + beta C + bias, as BLAS defines it: x(row, column) is at column * leading + row.
void execute(const ProductCall& call, const std::vector<double>& a, const std::vector<double>& b,
             const std::vector<double>& bias, std::vector<double>& c) {
  const auto element = [](const std::vector<double>& x, const CallMatrix& matrix, int64_t row, int64_t column) {
    EXPECT_LT(row, matrix.rows);
    EXPECT_LT(column, matrix.columns);
    EXPECT_GE(matrix.leading, matrix.rows);
    return x.at(static_cast<size_t>(column * matrix.leading + row));
  };
  for (int64_t j = 0; j < call.n; ++j) {
    for (int64_t i = 0; i < call.m; ++i) {
      double sum = call.has_bias ? bias.at(static_cast<size_t>(i)) : 0;
      for (int64_t k = 0; k < call.k; ++k) {
        sum += (call.transposes_a ? element(a, call.a, k, i) : element(a, call.a, i, k)) *
               (call.transposes_b ? element(b, call.b, j, k) : element(b, call.b, k, j));
      }
      double& place = c.at(static_cast<size_t>(j * call.c.leading + i));
      place = call.accumulate ? place + sum : sum;
    }
  }
}

struct PlanSizes {
  int64_t m, n, k;
};

void expect_call_is_the_product(const PlanSizes& size, const Lie& of_a, const Lie& of_b, int64_t space_of_c,
                                bool accumulate, bool has_bias) {
  std::mt19937 random(static_cast<unsigned>(size.m + 10 * size.n + 100 * size.k));
  constexpr auto kType = ProductType::kBFloat16;
  Stored a(kType, size.m, size.k, of_a, &random), b(kType, size.k, size.n, of_b, &random);
  Stored c(kType, size.m, size.n, {false, space_of_c}, &random);
  std::vector<double> bias(static_cast<size_t>(size.n));
  for (double& number : bias) number = static_cast<double>(random() % 9);
  Stored expected = c;
  for (int64_t i = 0; i < size.m; ++i) {
    for (int64_t j = 0; j < size.n; ++j) {
      double sum = has_bias ? bias[static_cast<size_t>(j)] : 0;
      for (int64_t k = 0; k < size.k; ++k) sum += a.at(i, k) * b.at(k, j);
      expected.at(i, j) = accumulate ? expected.at(i, j) + sum : sum;
    }
  }
  const ProductPlan plan = plan_product(
      {.a = a.matrix, .b = b.matrix, .c = c.matrix, .accumulate = accumulate, .has_bias = has_bias}, kHopper);
  ASSERT_TRUE(plan) << plan.refusal;
  // Small whole numbers: all sums are exact. Elements between rows of C stay.
  execute(plan.call, b.memory, a.memory, bias, c.memory);
  EXPECT_EQ(c.memory, expected.memory) << name_of(plan.call);
}

TEST(ProductPlan, EveryCallIsTheProduct) {
  for (const PlanSizes& size : {PlanSizes{3, 5, 4}, PlanSizes{1, 6, 3}, PlanSizes{4, 1, 5}, PlanSizes{2, 3, 1},
                                PlanSizes{1, 1, 1}, PlanSizes{1, 1, 7}, PlanSizes{8, 16, 24}}) {
    for (const bool a_is_transposed : {false, true}) {
      for (const bool b_is_transposed : {false, true}) {
        for (const int64_t space : {0, 3}) {
          for (const bool flag : {false, true}) {
            expect_call_is_the_product(size, {a_is_transposed, space}, {b_is_transposed, 2 * space}, space, flag,
                                       !flag);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

ProductMatrix rows_of(ProductType type, int64_t rows, int64_t columns, uint64_t address = 4096) {
  return {type, rows, columns, columns, 1, address};
}
ProductMatrix transpose_of(ProductType type, int64_t rows, int64_t columns) {
  return {type, rows, columns, 1, rows, 4096};
}

// The three products of a linear layer, as NVIDIA's and AMD's manuals name them.
TEST(ProductPlan, ALinearLayersProductsAreTnNnAndNt) {
  constexpr auto kBf16 = ProductType::kBFloat16;
  const int64_t t = 64, h = 32, o = 48;
  const auto name = [](const Product& product) { return name_of(plan_product(product, kHopper).call); };
  EXPECT_EQ(name({rows_of(kBf16, t, h), transpose_of(kBf16, h, o), rows_of(kBf16, t, o), false, true}),
            "TN 48x64x32 a bf16/32/64 b bf16/32/64 c bf16/48/32 bias");
  EXPECT_EQ(name({rows_of(kBf16, t, o), rows_of(kBf16, o, h), rows_of(kBf16, t, h)}),
            "NN 32x64x48 a bf16/32/64 b bf16/48/32 c bf16/32/64");
  EXPECT_EQ(name({transpose_of(kBf16, o, t), rows_of(kBf16, t, h), rows_of(ProductType::kFloat32, o, h), true}),
            "NT 32x48x64 a bf16/32/64 b bf16/48/32 c fp32/32/128 beta1");
}

TEST(ProductPlan, AlignmentIsThatOfAddressAndRows) {
  constexpr auto kType = ProductType::kFloat16;
  const auto alignment = [](const ProductMatrix& x) {
    const ProductPlan plan = plan_product({rows_of(kType, 1, x.rows), x, rows_of(kType, 1, x.columns)}, kAmpere);
    EXPECT_TRUE(plan) << plan.refusal;
    return plan.call.a.alignment;
  };
  EXPECT_EQ(alignment(rows_of(kType, 4, 256)), 256);
  EXPECT_EQ(alignment(rows_of(kType, 4, 1024)), 256);  // the most that is promised
  EXPECT_EQ(alignment(rows_of(kType, 4, 8)), 16);
  EXPECT_EQ(alignment(rows_of(kType, 4, 8, 4096 + 4)), 4);
  EXPECT_EQ(alignment(rows_of(kType, 4, 9)), 2);
}

std::string refusal(const Product& product, const ProductCapability& capability = kHopper) {
  return plan_product(product, capability).refusal;
}

TEST(ProductPlan, WhatTheLibrariesDoNotTakeIsRefused) {
  constexpr auto kBf16 = ProductType::kBFloat16, kFp16 = ProductType::kFloat16, kFp32 = ProductType::kFloat32;
  const auto product = [](ProductType a, ProductType b, ProductType c) {
    return Product{rows_of(a, 16, 32), rows_of(b, 32, 48), rows_of(c, 16, 48)};
  };
  EXPECT_EQ(refusal(product(kBf16, kBf16, kFp32)), "");
  EXPECT_EQ(refusal(product(kFp32, kFp32, kFp32)), "");
  EXPECT_EQ(refusal(product(kBf16, kFp16, kFp32)), "operands of bf16 and fp16 do not multiply");
  EXPECT_EQ(refusal(product(kBf16, kBf16, kFp16)), "operands of bf16 do not give fp16");
  Product with_bias = product(kBf16, kBf16, kFp32);
  with_bias.has_bias = true;
  EXPECT_EQ(refusal(with_bias), "a bias is added only to results of the operands' type");
  EXPECT_EQ(refusal({rows_of(kBf16, 0, 32), rows_of(kBf16, 32, 48), rows_of(kBf16, 0, 48)}), "it is empty");
  EXPECT_EQ(refusal({rows_of(kBf16, 4, 0), rows_of(kBf16, 0, 8), rows_of(kBf16, 4, 8)}), "it is empty");
  EXPECT_EQ(refusal({rows_of(kBf16, 4, 5), rows_of(kBf16, 6, 8), rows_of(kBf16, 4, 8)}),
            "(4, 5) times (6, 8) is not (4, 8)");
  const std::string lie = "rows of a matrix must lie in one piece, and not within each other";
  const ProductMatrix every_second{kBf16, 16, 32, 64, 2, 4096}, expanded{kBf16, 16, 32, 0, 1, 4096};
  EXPECT_EQ(refusal({every_second, rows_of(kBf16, 32, 48), rows_of(kBf16, 16, 48)}), lie);
  EXPECT_EQ(refusal({expanded, rows_of(kBf16, 32, 48), rows_of(kBf16, 16, 48)}), lie);
  EXPECT_EQ(refusal({rows_of(kBf16, 16, 32), rows_of(kBf16, 32, 48), transpose_of(kBf16, 16, 48)}), lie);
}

TEST(ProductPlan, ScalesOfBlocksAreThoseOfTheOperandsTheyBelongTo) {
  constexpr auto kE4m3 = ProductType::kFloat8E4m3, kBf16 = ProductType::kBFloat16;
  constexpr auto kVectors = ProductScaling::kAlongSum, kSquares = ProductScaling::kSquares;
  const auto product = [](ProductScaling a, ProductScaling b, int64_t sum = 256) {
    return Product{.a = rows_of(kE4m3, 64, sum),
                   .b = transpose_of(kE4m3, sum, 48),
                   .c = rows_of(kBf16, 64, 48),
                   .has_fast_sums = true,
                   .scaling_a = a,
                   .scaling_b = b};
  };
  const ProductPlan plan = plan_product(product(kVectors, kSquares), kHopperInBlocks);
  ASSERT_TRUE(plan) << plan.refusal;
  // The call's A is our b; sums of fewer bits are not for blocks.
  EXPECT_EQ(name_of(plan.call),
            "TN 48x64x256 a fp8_e4m3/256/256 b fp8_e4m3/256/256 c bf16/48/32 a in 128x128 b in 1x128");
  EXPECT_EQ(refusal(product(kVectors, kVectors), kHopperInBlocks), "");
  EXPECT_EQ(refusal(product(kSquares, kSquares), kHopperInBlocks), "two operands in squares do not multiply");
  EXPECT_EQ(refusal(product(kVectors, ProductScaling::kWhole), kHopperInBlocks),
            "both operands have scales of blocks, or neither");
  EXPECT_EQ(refusal(product(kVectors, kSquares, 192), kHopperInBlocks),
            "the sum of operands in blocks has a multiple of 128 terms, not 192");
  EXPECT_EQ(refusal(product(kVectors, kSquares), kHopper), "this device's library has no scales of blocks");
  EXPECT_EQ(refusal(product(kVectors, kSquares), kBlackwell), "this device's library has no scales of blocks");
  Product in_bf16{rows_of(kBf16, 64, 256), transpose_of(kBf16, 256, 48), rows_of(kBf16, 64, 48)};
  in_bf16.scaling_a = in_bf16.scaling_b = kVectors;
  EXPECT_EQ(refusal(in_bf16, kHopperInBlocks), "scales of blocks are for FP8");
}

TEST(ProductPlan, Fp8RunsAlongTheSumOnHopper) {
  constexpr auto kE4m3 = ProductType::kFloat8E4m3, kE5m2 = ProductType::kFloat8E5m2, kBf16 = ProductType::kBFloat16;
  const auto product = [](ProductType a, ProductType b, ProductType c, int64_t m = 32) {
    return Product{rows_of(a, m, 64), transpose_of(b, 64, 48), rows_of(c, m, 48)};
  };
  EXPECT_EQ(refusal(product(kE4m3, kE4m3, kBf16)), "");
  EXPECT_EQ(refusal(product(kE5m2, kE4m3, ProductType::kFloat32)), "");
  EXPECT_EQ(refusal(product(kE4m3, kE4m3, kBf16), kAmpere), "this device has no matrix units for FP8");
  EXPECT_EQ(refusal(product(kE5m2, kE5m2, kBf16)), "two operands of fp8_e5m2 do not multiply");
  EXPECT_EQ(refusal(product(kE4m3, kE4m3, kE4m3)), "results in eight bits are not made");
  EXPECT_EQ(refusal(product(kE4m3, kBf16, kBf16)), "operands of fp8_e4m3 and bf16 do not multiply");
  EXPECT_EQ(refusal(product(kE4m3, kE4m3, kBf16, 30)), "sizes of FP8 are multiples of 16, not 48 x 30 x 64");
  const Product plain{rows_of(kE4m3, 32, 64), rows_of(kE4m3, 64, 48), rows_of(kBf16, 32, 48)};
  EXPECT_EQ(refusal(plain), "this device multiplies FP8 only when the rows of both operands run along the sum");
  EXPECT_EQ(refusal(plain, kBlackwell), "");
  const Product askew{rows_of(kE4m3, 32, 64, 4096 + 8), transpose_of(kE4m3, 64, 48), rows_of(kBf16, 32, 48)};
  EXPECT_EQ(refusal(askew), "operands of FP8 begin and lie at multiples of 16 bytes");
  // Only products of FP8 have sums of fewer bits.
  Product fast = product(kE4m3, kE4m3, kBf16);
  fast.has_fast_sums = true;
  EXPECT_TRUE(plan_product(fast, kHopper).call.has_fast_sums);
  Product exact = {rows_of(kBf16, 32, 64), transpose_of(kBf16, 64, 48), rows_of(kBf16, 32, 48)};
  exact.has_fast_sums = true;
  EXPECT_FALSE(plan_product(exact, kHopper).call.has_fast_sums);
}

}  // namespace
}  // namespace megalith::ops::gpu::product_plan_test
