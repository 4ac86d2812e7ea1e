// Products by the vendor's library, here a double in host memory: values against float64, allocations and what is left
// of them, and the choice of algorithms.
#include "ops/gpu/blas.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "core/error.h"
#include "core/file.h"
#include "core/strings.h"
#include "device/memory.h"
#include "ops/grouped_linear/grouped_linear.h"
#include "ops/linear/linear.h"
#include "pretend/blas/cublaslt.h"
#include "support/temporary_folder.h"
#include "support/tensor_near.h"

namespace megalith::ops::gpu {
namespace {

using at::Tensor;
using pretend::cublaslt;

const at::Device kPretend(at::kPrivateUse1, 0);

class Blas : public ::testing::Test {
 protected:
  void SetUp() override { at::manual_seed(1); }
  void TearDown() override {
    set_gemm_tuning({}, kPretend);
    cublaslt().quick_algorithm = -1;
    cublaslt().version = 130100;
    EXPECT_EQ(cublaslt().num_objects, 0) << "descriptions, layouts or preferences were not destroyed";
  }
};

Tensor random_on_device(at::IntArrayRef sizes, at::ScalarType dtype) { return at::randn(sizes).to(dtype).to(kPretend); }

Tensor exact_product(const Tensor& a, const Tensor& b) {
  return at::mm(a.to(at::kCPU).to(at::kDouble), b.to(at::kCPU).to(at::kDouble));
}

// A result is rounded once to its dtype, from a sum of at most 50 products in fp32.
double nearness_of(at::ScalarType dtype) {
  if (dtype == at::kFloat) return 1e-6;
  return dtype == at::kHalf ? 1.0 / 2048 : 1.0 / 256;
}

TEST_F(Blas, ProductsMatchFloat64) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const bool is_transposed : {false, true}) {
      const Tensor a =
          is_transposed ? random_on_device({50, 7}, dtype).t() : random_on_device({7, 52}, dtype).narrow(1, 2, 50);
      const Tensor b =
          is_transposed ? random_on_device({9, 53}, dtype).narrow(1, 1, 50).t() : random_on_device({50, 9}, dtype);
      const Tensor bias = random_on_device({9}, dtype), exact = exact_product(a, b);
      for (const at::ScalarType result : {at::kFloat, dtype}) {
        const Tensor c = at::full({7, 9}, std::nan(""), a.options().dtype(result));
        ASSERT_TRUE(try_product({.c = c, .a = a, .b = b}));
        const double near = nearness_of(result);
        EXPECT_TENSOR_NEAR(c.to(at::kCPU), exact, {.rel_to_max = near});
        const Tensor before = random_on_device({7, 9}, result), sum = before.clone();
        ASSERT_TRUE(try_product({.c = sum, .a = a, .b = b, .accumulate = true}));
        EXPECT_TENSOR_NEAR(sum.to(at::kCPU), before.to(at::kCPU) + exact, {.rel_to_max = 2 * near});
      }
      const Tensor c = at::empty({7, 9}, a.options());
      ASSERT_TRUE(try_product({.c = c, .a = a, .b = b, .bias = bias}));
      EXPECT_TENSOR_NEAR(c.to(at::kCPU), exact + bias.to(at::kCPU), {.rel_to_max = 2 * nearness_of(dtype)});
    }
  }
}

TEST_F(Blas, Fp8IsScaledAndAdded) {
  const auto e4m3 = at::kFloat8_e4m3fn, e5m2 = at::kFloat8_e5m2;
  for (const auto& [of_a, of_b] : {std::pair{e4m3, e4m3}, std::pair{e5m2, e4m3}}) {
    const Tensor a = at::randn({32, 48}).to(of_a).to(kPretend), b = at::randn({16, 48}).to(of_b).to(kPretend).t();
    const Tensor scale_a = at::full({1}, 0.5, at::kFloat).to(kPretend),
                 scale_b = at::full({1}, 3.0, at::kFloat).to(kPretend);
    const Tensor exact = 1.5 * exact_product(a, b), c = at::ones({32, 16}, a.options().dtype(at::kFloat));
    ASSERT_TRUE(try_product({.c = c, .a = a, .b = b, .accumulate = true, .scale_a = scale_a, .scale_b = scale_b}));
    EXPECT_TENSOR_NEAR(c.to(at::kCPU), exact + 1, {.rel_to_max = 1e-6});
    const Tensor half = at::empty({32, 16}, a.options().dtype(at::kBFloat16));
    ASSERT_TRUE(
        try_product({.c = half, .a = a, .b = b, .scale_a = scale_a, .scale_b = scale_b, .has_fast_sums = true}));
    EXPECT_TENSOR_NEAR(half.to(at::kCPU), exact, {.rel_to_max = 1.0 / 256});
  }
}

// Powers of two, so that float sums what double does.
Tensor powers_of_two(at::IntArrayRef sizes) { return at::randint(-3, 4, sizes, at::kFloat).exp2_(); }

TEST_F(Blas, BlocksAreScaledEachByItsOwn) {
  const int64_t m = 160, n = 144, k = 256;
  const auto e4m3 = at::kFloat8_e4m3fn, e5m2 = at::kFloat8_e5m2;
  const auto wide = [](const Tensor& x) { return x.to(at::kCPU).to(at::kDouble); };
  // (rows, 2) of 1 x 128, (ceil(rows / 128), 2) of 128 x 128
  const Tensor of_a = powers_of_two({m, 2}), of_b = powers_of_two({n, 2}), squares = powers_of_two({2, 2});
  const Tensor a = at::randn({m, k}).to(e5m2).to(kPretend), b = at::randn({n, k}).to(e4m3).to(kPretend);
  const Tensor exact_a = wide(a) * of_a.repeat_interleave(128, 1);
  const Tensor in_vectors = wide(b) * of_b.repeat_interleave(128, 1);
  const Tensor in_squares = wide(b) * squares.repeat_interleave(128, 0).narrow(0, 0, n).repeat_interleave(128, 1);
  // As the library reads them: those of 1 x 128 with all rows of a block together, squares in rows of four.
  const Tensor scale_a = of_a.t().contiguous().to(kPretend), scale_b = of_b.t().contiguous().to(kPretend);
  const Tensor scale_squares = at::constant_pad_nd(squares, {0, 2}, std::nan("")).to(kPretend);
  const int64_t before = cublaslt().num_block_products;
  const Tensor c = at::ones({m, n}, a.options().dtype(at::kFloat));
  ASSERT_TRUE(try_product({.c = c,
                           .a = a,
                           .b = b.t(),
                           .accumulate = true,
                           .scale_a = scale_a,
                           .scale_b = scale_b,
                           .scaling_a = ProductScaling::kAlongSum,
                           .scaling_b = ProductScaling::kAlongSum}));
  EXPECT_TENSOR_NEAR(c.to(at::kCPU), exact_a.mm(in_vectors.t()) + 1, {.rel_to_max = 1e-6});
  const Tensor half = at::empty({m, n}, a.options().dtype(at::kBFloat16));
  ASSERT_TRUE(try_product({.c = half,
                           .a = a,
                           .b = b.t(),
                           .scale_a = scale_a,
                           .scale_b = scale_squares,
                           .scaling_a = ProductScaling::kAlongSum,
                           .scaling_b = ProductScaling::kSquares}));
  EXPECT_TENSOR_NEAR(half.to(at::kCPU), exact_a.mm(in_squares.t()), {.rel_to_max = 1.0 / 256});
  EXPECT_EQ(cublaslt().num_block_products, before + 2);
}

TEST_F(Blas, TellsWhatItDoesWithEightBits) {
  const Fp8Products products = fp8_products_of(kPretend);
  EXPECT_TRUE(products.are_made && products.want_rows_along_sum && products.take_blocks);
  EXPECT_FALSE(fp8_products_of(at::kCPU).are_made);
  EXPECT_FALSE(fp8_products_of(at::kMeta).are_made);
}

TEST_F(Blas, WhatItDoesNotTakeIsLeftToOthers) {
  const int64_t before = cublaslt().num_products;
  const Tensor a = random_on_device({4, 6}, at::kDouble), c = at::empty({4, 4}, a.options());
  EXPECT_FALSE(try_product({.c = c, .a = a, .b = a.t()}));
  const Tensor empty = random_on_device({0, 6}, at::kFloat), none = at::empty({0, 0}, empty.options());
  EXPECT_FALSE(try_product({.c = none, .a = empty, .b = empty.t()}));
  const Tensor on_cpu = at::randn({4, 4});
  EXPECT_FALSE(try_product({.c = on_cpu, .a = on_cpu, .b = on_cpu}));
  EXPECT_EQ(cublaslt().num_products, before);
}

int64_t peak_beyond(const auto& run) {
  run();  // the library's workspace stays
  reset_peak_memory(kPretend);
  const int64_t before = memory_stats(kPretend).allocated_bytes;
  run();
  return memory_stats(kPretend).peak_allocated_bytes - before;
}

TEST_F(Blas, AWeightGradientAllocatesNothing) {
  const Tensor x = random_on_device({200, 96}, at::kBFloat16), dy = random_on_device({200, 64}, at::kBFloat16);
  const Tensor dw = at::zeros({64, 96}, x.options().dtype(at::kFloat));
  EXPECT_EQ(peak_beyond([&] { linear_wgrad_(dw, dy, x); }), 0);
  // The reference takes wide copies of both operands and the product: the measurement sees them.
  EXPECT_GE(peak_beyond([&] { linear_wgrad_(dw, dy, x, true, Kernels::kReference); }),
            200 * (96 + 64) * 4 + 64 * 96 * 4);

  const Tensor experts = at::zeros({2, 64, 96}, dw.options()),
               offsets = at::tensor({0, 70, 200}, at::kLong).to(kPretend);
  EXPECT_EQ(peak_beyond([&] { grouped_linear_wgrad_(experts, dy, x, offsets); }), 0);
}

TEST_F(Blas, WeightGradientsAreTheLibrarysAndOthersLibTorchs) {
  const Tensor x = random_on_device({8, 6}, at::kBFloat16), w = random_on_device({4, 6}, at::kBFloat16);
  const Tensor dw = at::zeros({4, 6}, x.options().dtype(at::kFloat));
  const int64_t before = cublaslt().num_products;
  const Tensor y = linear_forward(x, w);
  linear_dgrad(y, w);
  EXPECT_EQ(cublaslt().num_products, before);
  linear_wgrad_(dw, y, x);
  EXPECT_EQ(cublaslt().num_products, before + 1);
}

GemmTuningOptions tuning(GemmTuning mode, const std::filesystem::path& file) { return {mode, file.string()}; }

TEST_F(Blas, TheQuickestAlgorithmIsWrittenAndUsed) {
  const test::TemporaryFolder folder;
  const auto file = folder.path() / "gemm.json";
  const Tensor x = random_on_device({8, 6}, at::kBFloat16), w = random_on_device({4, 6}, at::kBFloat16);
  const Tensor plain = linear_forward(x, w);
  cublaslt().quick_algorithm = 11;  // all others take 2 ms
  set_gemm_tuning(tuning(GemmTuning::kTune, file), kPretend);
  EXPECT_EQ(gemm_tuning_text(), "cuBLASLt 130100, 0 products of " + file.string() + ", others are tuned and added");
  const Tensor tuned = linear_forward(x, w);
  EXPECT_EQ(cublaslt().last_algorithm, 11);
  EXPECT_TENSOR_NEAR(tuned.to(at::kCPU), plain.to(at::kCPU), {.rel_to_max = 1.0 / 128});
  const int64_t products = cublaslt().num_products;
  linear_forward(x, w);  // not measured again
  EXPECT_EQ(cublaslt().num_products, products + 1);

  // Another run, in which another one would be quicker: the file's is taken, without measuring.
  cublaslt().quick_algorithm = 3;
  set_gemm_tuning(tuning(GemmTuning::kUse, file), kPretend);
  EXPECT_EQ(gemm_tuning_text(), "cuBLASLt 130100, 1 products of " + file.string());
  EXPECT_TRUE(at::equal(linear_forward(x, w).to(at::kCPU), tuned.to(at::kCPU)));
  EXPECT_EQ(cublaslt().last_algorithm, 11);
  EXPECT_EQ(cublaslt().num_products, products + 2);
  // Products that it lacks get the library's first choice.
  linear_dgrad(tuned, w);
  EXPECT_EQ(cublaslt().last_algorithm, 0);

  // Tuning goes on with the same file, and keeps what is there.
  set_gemm_tuning(tuning(GemmTuning::kTune, file), kPretend);
  linear_dgrad(tuned, w);
  EXPECT_EQ(cublaslt().last_algorithm, 3);
  linear_forward(x, w);
  EXPECT_EQ(cublaslt().last_algorithm, 11);
}

// Text of the error; empty without one.
std::string error_of(const auto& run) {
  try {
    run();
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST_F(Blas, AFileOfAnotherVersionOrDeviceIsRefused) {
  const test::TemporaryFolder folder;
  const auto file = folder.path() / "gemm.json";
  const auto use = [&] { set_gemm_tuning(tuning(GemmTuning::kUse, file), kPretend); };
  const auto says = [](const std::string& found, const std::string& part) {
    return found.find(part) != std::string::npos;
  };
  EXPECT_PRED2(says, error_of(use), "--gemm_tuning use reads " + file.string() + ", which is not there");

  add_tuned_products(file, {"cuBLASLt 120800", "a pretend accelerator, sm_90", {{"TN", {.words = {1}}}}});
  EXPECT_PRED2(says, error_of(use), "was tuned with the library cuBLASLt 120800, and this is cuBLASLt 130100");
  EXPECT_PRED2(says, error_of([&] { set_gemm_tuning(tuning(GemmTuning::kTune, file), kPretend); }), "cuBLASLt 120800");
  std::filesystem::remove(file);
  add_tuned_products(file, {"cuBLASLt 130100", "NVIDIA H200, sm_90", {}});
  EXPECT_PRED2(says, error_of(use),
               "was tuned with the device NVIDIA H200, sm_90, and this is a pretend accelerator, sm_90");
  write_file_atomic(file, "{\"format\": \"something else\"}");
  EXPECT_PRED2(says, error_of(use), "is no file of --gemm_tuning");
  EXPECT_PRED2(says, error_of([&] { set_gemm_tuning(tuning(GemmTuning::kTune, file), at::kCPU); }),
               "this run is on the CPU");
}

TEST_F(Blas, AFileThatWasChangedIsRefused) {
  const test::TemporaryFolder folder;
  const auto file = folder.path() / "gemm.json";
  const Tensor x = random_on_device({8, 6}, at::kBFloat16), w = random_on_device({4, 6}, at::kBFloat16);
  set_gemm_tuning(tuning(GemmTuning::kTune, file), kPretend);
  linear_forward(x, w);
  const std::string good = read_file(file), word = "6d6567616c697468";
  ASSERT_NE(good.find(word), std::string::npos) << good;
  const auto try_with = [&](const std::string& instead) {
    std::string text = good;
    text.replace(text.find(word), word.size(), instead);
    write_file_atomic(file, text);
    return error_of([&] {
      set_gemm_tuning(tuning(GemmTuning::kUse, file), kPretend);
      linear_forward(x, w);
    });
  };
  EXPECT_NE(try_with("0000000000000001").find("does not run the algorithm"), std::string::npos);
  EXPECT_NE(try_with("nonsense").find("'nonsense' is no number in hexadecimal"), std::string::npos);
  EXPECT_EQ(try_with(word), "");
}

}  // namespace
}  // namespace megalith::ops::gpu
