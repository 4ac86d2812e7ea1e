// linear and embedding: products, weight gradients summed in fp32, and their gradients.
#include "ops/linear/linear.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "device/device.h"
#include "ops/linear/products.h"
#include "support/gradients.h"
#include "support/on_device.h"
#include "support/tensor_near.h"

namespace megalith::ops::linear_test {
namespace {

using at::Tensor;
using Linear = testing::OnDevice;
using Embedding = testing::OnDevice;

struct Shape {
  int64_t t, h, o;
};
// One element; primes; panels of 64 and blocks of 256 with tails; more tokens than one pass takes.
constexpr Shape kShapes[] = {{1, 1, 1}, {3, 5, 7}, {67, 130, 97}, {64, 64, 256}, {33, 192, 300}, {2051, 70, 33}};
constexpr at::ScalarType kDtypes[] = {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf};
constexpr Kernels kBoth[] = {Kernels::kFused, Kernels::kReference};

at::ScalarType wide_of(at::ScalarType dtype) { return dtype == at::kDouble ? at::kDouble : at::kFloat; }

// One rounding of the result to 16 bits; sums of t or h products in fp32.
double tolerance_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBFloat16:
      return 1.0 / 256;
    case at::kHalf:
      return 1.0 / 2048;
    case at::kFloat:
      return 2e-6;
    default:
      return 1e-14;
  }
}

TEST_P(Linear, ForwardAndInputGradientMatchFloat64) {
  at::manual_seed(1);
  for (const auto& [t, h, o] : kShapes) {
    for (const at::ScalarType dtype : kDtypes) {
      const Tensor x = testing::randn({t, h}).to(dtype), w = testing::randn({o, h}).to(dtype),
                   bias = testing::randn({o}).to(dtype);
      const Tensor dy = testing::randn({t, o}).to(dtype);
      const Tensor exact = at::mm(x.to(at::kDouble), w.to(at::kDouble).t());
      const Tensor dx = at::mm(dy.to(at::kDouble), w.to(at::kDouble));
      const double near = tolerance_of(dtype);
      for (const Kernels kernels : kBoth) {
        const auto what = fmt::format("({}, {}, {}) {}", t, h, o, c10::toString(dtype));
        EXPECT_TENSOR_NEAR(linear_forward(x, w, {}, kernels), exact, {.rel_to_max = near, .what = what});
        EXPECT_TENSOR_NEAR(linear_forward(x, w, bias, kernels), exact + bias.to(at::kDouble),
                           {.abs = near, .rel_to_max = 2 * near, .what = what + " bias"});
        EXPECT_TENSOR_NEAR(linear_dgrad(dy, w, kernels), dx, {.rel_to_max = near, .what = what + " dx"});
      }
    }
  }
}

// Sizes around those in which the product of bf16 is cut: panels of 64 columns, pairs of k, blocks of 256 rows and of
// at most 1024 k; more rows than one task takes.
constexpr Shape kProductShapes[] = {{64, 64, 64},     {65, 65, 65},    {70, 66, 190},   {257, 97, 131}, {300, 1025, 70},
                                    {129, 2303, 192}, {2100, 64, 300}, {513, 1282, 67}, {66, 70, 1100}};

TEST(Linear, BlockedProductsMatchFloat64AndReference) {
  at::manual_seed(9);
  for (const auto& [t, h, o] : kProductShapes) {
    const auto what = fmt::format("({}, {}, {})", t, h, o);
    // Rows of wider tensors, an odd number of elements apart and off any alignment; NaN between them.
    const auto strided = [](int64_t rows, int64_t columns) {
      const Tensor wide = testing::full({rows, columns + 3 + columns % 2}, std::nan(""), at::kBFloat16);
      const Tensor inner = wide.narrow(1, 1, columns);
      inner.copy_(testing::randn({rows, columns}));
      return inner;
    };
    for (const bool is_strided : {false, true}) {
      const auto make = [&](int64_t rows, int64_t columns) {
        return is_strided ? strided(rows, columns) : testing::randn({rows, columns}).to(at::kBFloat16);
      };
      const Tensor x = make(t, h), w = make(o, h), dy = make(t, o), bias = testing::randn({o}).to(at::kBFloat16);
      const Tensor exact = at::mm(x.to(at::kDouble), w.to(at::kDouble).t());
      const Tensor dx = at::mm(dy.to(at::kDouble), w.to(at::kDouble));
      // One rounding to bf16, to nearest: 2^-8 of the value; beside it only the error of sums in fp32.
      const double round = 1.0 / 256;
      EXPECT_TENSOR_NEAR(linear_forward(x, w), exact, {.rel = round, .rel_to_max = 1e-6, .what = what});
      EXPECT_TENSOR_NEAR(linear_forward(x, w, bias), exact + bias.to(at::kDouble),
                         {.rel = round, .rel_to_max = 1e-6, .what = what + " bias"});
      EXPECT_TENSOR_NEAR(linear_dgrad(dy, w), dx, {.rel = round, .rel_to_max = 1e-6, .what = what + " dx"});
      // Both round the same sum, so that they differ by one step of bf16 where it is halfway.
      const Tensor reference = linear_forward(x, w, bias, Kernels::kReference);
      EXPECT_TENSOR_NEAR(linear_forward(x, w, bias), reference, {.rel = 1.0 / 64, .rel_to_max = 1e-2, .what = what});
      EXPECT_TENSOR_NEAR(linear_dgrad(dy, w), linear_dgrad(dy, w, Kernels::kReference),
                         {.rel = 1.0 / 128, .rel_to_max = 1e-5, .what = what + " dx"});
    }
  }
}

TEST(Linear, BlockedProductsWriteNothingBesideTheirRows) {
  at::manual_seed(10);
  const int64_t t = 130, h = 67, o = 97;
  const Tensor x = testing::randn({t, h}).to(at::kBFloat16), w = testing::randn({o, h}).to(at::kBFloat16);
  const Tensor dy = testing::randn({t, o}).to(at::kBFloat16);
  const auto expect_inside = [&](int64_t columns, auto&& write, const Tensor& expected) {
    const Tensor buffer = testing::full({t + 2, columns + 9}, 5.0, at::kBFloat16), untouched = buffer.clone();
    const auto inside = [&](const Tensor& whole) { return whole.narrow(0, 1, t).narrow(1, 4, columns); };
    write(inside(buffer));
    inside(untouched).copy_(expected);
    EXPECT_TENSOR_NEAR(buffer, untouched);
  };
  expect_inside(
      o, [&](const Tensor& y) { cpu::linear_forward_out(y, x, w, /*bias=*/{}); }, linear_forward(x, w));
  expect_inside(
      h, [&](const Tensor& dx) { cpu::linear_dgrad_out(dx, dy, w); }, linear_dgrad(dy, w));
}

TEST(Linear, BlockedProductsDoNotDependOnTheNumberOfThreads) {
  if (!cpu::has_own_bf16_products()) GTEST_SKIP() << "LibTorch's products, which promise nothing, serve this processor";
  at::manual_seed(11);
  const int before = at::get_num_threads();
  for (const auto& [t, h, o] : kProductShapes) {
    const Tensor x = testing::randn({t, h}).to(at::kBFloat16), w = testing::randn({o, h}).to(at::kBFloat16);
    const Tensor dy = testing::randn({t, o}).to(at::kBFloat16), bias = testing::randn({o}).to(at::kBFloat16);
    at::set_num_threads(1);
    const Tensor y = linear_forward(x, w, bias), dx = linear_dgrad(dy, w);
    for (const int threads : {2, 3, 7}) {
      at::set_num_threads(threads);
      EXPECT_TRUE(at::equal(linear_forward(x, w, bias), y)) << t << " " << h << " " << o << ", " << threads;
      EXPECT_TRUE(at::equal(linear_dgrad(dy, w), dx)) << t << " " << h << " " << o << ", " << threads;
    }
  }
  at::set_num_threads(before);
}

// Rows of wider tensors, off any alignment; NaN beside them.
Tensor few_rows(int64_t rows, int64_t columns, at::ScalarType dtype) {
  const Tensor wide = testing::full({rows, columns + 3}, std::nan(""), dtype);
  wide.narrow(1, 1, columns).copy_(testing::randn({rows, columns}));
  return wide.narrow(1, 1, columns);
}

// Sums of few terms, registers (8 to 32 terms) with tails, columns that fill no block, several tasks.
constexpr Shape kFewRowsShapes[] = {{0, 1, 1}, {0, 31, 7}, {0, 33, 49}, {0, 70, 130}, {0, 773, 97}, {0, 64, 48}};

TEST(Linear, FewRowsMatchFloat64AndAreTheSameInAnyCompany) {
  at::manual_seed(12);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const double round = dtype == at::kHalf ? 1.0 / 2048 : 1.0 / 256;
    for (const auto& [unused, h, o] : kFewRowsShapes) {
      const Tensor x = few_rows(16, h, dtype), w = few_rows(o, h, dtype), bias = testing::randn({o}).to(dtype);
      const Tensor exact = at::addmm(bias.to(at::kDouble), x.to(at::kDouble), w.to(at::kDouble).t());
      const Tensor all = linear_forward(x, w, bias), reference = linear_forward(x, w, bias, Kernels::kReference);
      for (int64_t rows = 1; rows <= 16; ++rows) {
        const auto what = fmt::format("{} rows ({}, {}) {}", rows, h, o, c10::toString(dtype));
        const Tensor y = linear_forward(x.narrow(0, 16 - rows, rows), w, bias);
        EXPECT_TENSOR_NEAR(y, exact.narrow(0, 16 - rows, rows), {.rel = round, .rel_to_max = 1e-6, .what = what});
        EXPECT_TRUE(at::equal(y, all.narrow(0, 16 - rows, rows))) << what;
      }
      EXPECT_TENSOR_NEAR(all, reference, {.rel = 2 * round, .rel_to_max = 2 * round, .what = "reference"});
    }
  }
}

// The forms for processors with fewer instructions, and any number of threads.
TEST(Linear, EveryFormOfFewRowsAgrees) {
  at::manual_seed(13);
  using Kernel = void(const cpu::FewRowsProduct&, std::atomic<int64_t>*);
  std::vector<std::pair<std::string, Kernel*>> kernels = {{"DEFAULT", &cpu::DEFAULT::few_rows_product}};
#if defined(__x86_64__)
  if (cpu_features().avx2) kernels.emplace_back("AVX2", &cpu::AVX2::few_rows_product);
  if (cpu_features().avx512) kernels.emplace_back("AVX512", &cpu::AVX512::few_rows_product);
#endif
  const int before = at::get_num_threads();
  for (const auto& [unused, h, o] : kFewRowsShapes) {
    const Tensor x = few_rows(11, h, at::kBFloat16), w = few_rows(o, h, at::kBFloat16);
    const Tensor y = linear_forward(x, w), exact = at::mm(x.to(at::kDouble), w.to(at::kDouble).t());
    for (const int threads : {1, 2, 3}) {
      at::set_num_threads(threads);
      EXPECT_TRUE(at::equal(linear_forward(x, w), y)) << h << " " << o << ", " << threads << " threads";
    }
    for (const auto& [name, kernel] : kernels) {
      const Tensor out = testing::full({11, o}, std::nan(""), at::kBFloat16);
      std::atomic<int64_t> next{0};
      kernel({.dtype = Dtype::kBFloat16,
              .has_pairs = false,
              .m = 11,
              .n = o,
              .k = h,
              .x = x.const_data_ptr(),
              .x_stride = x.stride(0),
              .w = w.const_data_ptr(),
              .w_stride = w.stride(0),
              .bias = nullptr,
              .y = out.mutable_data_ptr(),
              .y_stride = o},
             &next);
      const auto what = fmt::format("{} ({}, {})", name, h, o);
      EXPECT_TENSOR_NEAR(out, exact, {.rel = 1.0 / 256, .rel_to_max = 1e-6, .what = what});
    }
  }
  at::set_num_threads(before);
}

struct FloatCase {
  bool a_is_transposed, b_is_transposed, has_bias, accumulate;
};
// Forward, input gradient, both kinds of weight gradient, and the form that no layer needs.
constexpr FloatCase kFloatCases[] = {{false, true, true, false},
                                     {false, false, false, false},
                                     {true, false, false, true},
                                     {true, false, false, false},
                                     {true, true, false, false}};

// Rows of a wider tensor, off any alignment; NaN between them.
Tensor apart(const Tensor& t) {
  const Tensor wide = testing::full({t.size(0), t.size(1) + 5}, std::nan(""));
  wide.narrow(1, 3, t.size(1)).copy_(t);
  return wide.narrow(1, 3, t.size(1));
}

// The product's results in a buffer with 5 around them.
Tensor multiply_floats(const FloatCase& form, const Tensor& a, const Tensor& b, const Tensor& bias,
                       const Tensor& before) {
  const Tensor buffer = testing::full({before.size(0) + 2, before.size(1) + 7}, 5.0f);
  const Tensor c = buffer.narrow(0, 1, before.size(0)).narrow(1, 4, before.size(1));
  c.copy_(before);
  cpu::FloatProduct product = cpu::float_product(c, a, form.a_is_transposed, b, form.b_is_transposed);
  product.accumulate = form.accumulate;
  if (form.has_bias) product.bias = bias.const_data_ptr<float>();
  cpu::run_float_products({product});
  return buffer;
}

// Run by every processor, also where LibTorch's products serve. Sizes around those in which they are cut: strips of 4,
// 6 and 14 rows, panels of 16 and 32 columns, tasks of 64 to 2048 rows and 192 to 768 columns, blocks of 256 k.
constexpr Shape kFloatShapes[] = {{1, 1, 1},     {3, 5, 7},     {14, 256, 32}, {15, 257, 33}, {65, 65, 65},
                                  {70, 513, 31}, {257, 97, 131}, {29, 70, 800}, {2100, 64, 40}};

TEST(Linear, FloatProductsMatchFloat64AndWriteNothingBeside) {
  at::manual_seed(12);
  for (const auto& [m, k, n] : kFloatShapes) {
    for (const FloatCase& form : kFloatCases) {
      const Tensor a = testing::randn({m, k}), b = testing::randn({k, n}), bias = testing::randn({n});
      const Tensor before = form.accumulate ? testing::randn({m, n}) : testing::full({m, n}, std::nan(""));
      const Tensor result = multiply_floats(form, apart(form.a_is_transposed ? a.t() : a),
                                            apart(form.b_is_transposed ? b.t() : b), bias, before);
      Tensor exact = at::mm(a.to(at::kDouble), b.to(at::kDouble));
      if (form.has_bias) exact = exact + bias;
      if (form.accumulate) exact = exact + before;
      const Tensor expected = testing::full(result.sizes(), 5.0, at::kDouble);
      expected.narrow(0, 1, m).narrow(1, 4, n).copy_(exact);
      EXPECT_TENSOR_NEAR(result, expected,
                         {.abs = 1e-6, .rel_to_max = 2e-6,
                          .what = fmt::format("({}, {}, {}) {} {}", m, k, n, form.a_is_transposed,
                                              form.b_is_transposed)});
    }
  }
}

TEST(Linear, FloatProductsDoNotDependOnTheNumberOfThreads) {
  at::manual_seed(13);
  const int before_threads = at::get_num_threads();
  for (const auto& [m, k, n] : kFloatShapes) {
    const Tensor a = testing::randn({m, k}), b = testing::randn({k, n}), bias = testing::randn({n});
    const Tensor before = testing::randn({m, n});
    for (const FloatCase& form : kFloatCases) {
      const Tensor left = form.a_is_transposed ? a.t().contiguous() : a;
      const Tensor right = form.b_is_transposed ? b.t().contiguous() : b;
      at::set_num_threads(1);
      const Tensor alone = multiply_floats(form, left, right, bias, before);
      for (const int threads : {2, 3, 64}) {
        at::set_num_threads(threads);
        EXPECT_TRUE(at::equal(multiply_floats(form, left, right, bias, before), alone))
            << m << " " << k << " " << n << ", " << threads;
      }
    }
  }
  at::set_num_threads(before_threads);
}

TEST(Linear, FloatProductsPassOnWhatIsNotFinite) {
  for (const FloatCase& form : kFloatCases) {
    const int64_t m = 31, k = 300, n = 45;
    const Tensor a = testing::ones({m, k}), b = testing::ones({k, n}), bias = testing::ones({n});
    a[30][299] = std::nan("");
    b[0][44] = std::numeric_limits<float>::infinity();
    const Tensor c = multiply_floats(form, form.a_is_transposed ? a.t().contiguous() : a,
                                     form.b_is_transposed ? b.t().contiguous() : b, bias, testing::zeros({m, n}))
                         .narrow(0, 1, m)
                         .narrow(1, 4, n);
    EXPECT_TRUE(c.narrow(0, 30, 1).isnan().all().item<bool>());
    EXPECT_TRUE(c.narrow(0, 0, 30).narrow(1, 44, 1).isinf().all().item<bool>());
    EXPECT_TRUE(c.narrow(0, 0, 30).narrow(1, 0, 44).isfinite().all().item<bool>());
  }
}

// The layers' functions, by whichever products serve this processor.
TEST(Linear, ProductsOfFloatsMatchFloat64) {
  at::manual_seed(14);
  for (const auto& [t, h, o] : kProductShapes) {
    const auto what = fmt::format("({}, {}, {})", t, h, o);
    const Tensor x = apart(testing::randn({t, h})), w = apart(testing::randn({o, h})), dy = testing::randn({t, o});
    const Tensor bias = testing::randn({o, 2}).select(1, 1), dw = testing::randn({o, h});
    const Tensor exact_dw = dw + at::mm(dy.to(at::kDouble).t(), x.to(at::kDouble));
    const testing::Tolerance near{.rel_to_max = 2e-6, .what = what};
    EXPECT_TENSOR_NEAR(linear_forward(x, w, bias), at::mm(x.to(at::kDouble), w.to(at::kDouble).t()) + bias, near);
    EXPECT_TENSOR_NEAR(linear_dgrad(dy, w), at::mm(dy.to(at::kDouble), w.to(at::kDouble)), near);
    linear_wgrad_(dw, dy, x);
    EXPECT_TENSOR_NEAR(dw, exact_dw, near);
  }
}

TEST_P(Linear, WeightGradientIsSummedWithoutRounding) {
  at::manual_seed(2);
  for (const auto& [t, h, o] : kShapes) {
    for (const at::ScalarType dtype : kDtypes) {
      // Rows of a wider tensor: only they must be contiguous.
      const Tensor x = testing::randn({t, h + 3}).to(dtype).narrow(1, 1, h);
      const Tensor dy = testing::randn({t, o + 2}).to(dtype).narrow(1, 2, o);
      const Tensor exact = at::mm(dy.to(at::kDouble).t(), x.to(at::kDouble));
      const Tensor before = testing::randn({o, h}, wide_of(dtype));
      for (const Kernels kernels : kBoth) {
        const auto what = fmt::format("({}, {}, {}) {}", t, h, o, c10::toString(dtype));
        // Products of 16-bit numbers are exact in fp32; t of them are summed in fp32, never in 16 bits.
        const Tensor allowed = before.clone();
        const double near = dtype == at::kDouble ? 1e-14 : 2e-6;
        linear_wgrad_(allowed, dy, x, true, kernels);
        EXPECT_TENSOR_NEAR(allowed, before + exact, {.abs = near, .rel_to_max = near, .what = what + " summed"});
        const Tensor fresh = testing::full({o, h}, std::nan(""), before.options());
        linear_wgrad_(fresh, dy, x, false, kernels);
        EXPECT_TENSOR_NEAR(fresh, exact, {.rel_to_max = near, .what = what + " fresh"});
      }
    }
  }
}

TEST_P(Linear, WeightGradientWritesNothingBesideItsRows) {
  at::manual_seed(3);
  const Tensor x = testing::randn({37, 70}).to(at::kBFloat16), dy = testing::randn({37, 45}).to(at::kBFloat16);
  const Tensor buffer = testing::full({47, 80}, 5.0f);
  linear_wgrad_(buffer.narrow(0, 1, 45).narrow(1, 4, 70), dy, x, false);
  const Tensor untouched = testing::full({47, 80}, 5.0f);
  untouched.narrow(0, 1, 45).narrow(1, 4, 70).copy_(at::mm(dy.to(at::kFloat).t(), x.to(at::kFloat)));
  EXPECT_TENSOR_NEAR(buffer, untouched, {.abs = 1e-4});
}

TEST_P(Linear, NoTokensGiveNoGradient) {
  const Tensor x = testing::zeros({0, 4}, at::kBFloat16), dy = testing::zeros({0, 3}, at::kBFloat16),
               dw = testing::ones({3, 4});
  linear_wgrad_(dw, dy, x, true);
  EXPECT_TENSOR_NEAR(dw, testing::ones({3, 4}));
  linear_wgrad_(dw, dy, x, false);
  EXPECT_TENSOR_NEAR(dw, testing::zeros({3, 4}));
}

TEST(Linear, GradientsDoNotDependOnTheNumberOfThreads) {
  at::manual_seed(4);
  const int before = at::get_num_threads();
  const Tensor x = testing::randn({300, 200}).to(at::kBFloat16), dy = testing::randn({300, 500}).to(at::kBFloat16);
  const Tensor ids = testing::randint(0, 20, {300});
  std::vector<std::vector<Tensor>> results;
  for (const int threads : {1, 2, 3, 7}) {
    at::set_num_threads(threads);
    const Tensor dw = testing::ones({500, 200}), db = testing::ones({500}), de = testing::ones({20, 200});
    linear_wgrad_(dw, dy, x);
    bias_grad_(db, dy);
    embedding_wgrad_(de, ids, x);
    results.push_back({dw, db, de});
  }
  at::set_num_threads(before);
  for (const auto& result : results) {
    for (size_t i = 0; i < result.size(); ++i) EXPECT_TRUE(at::equal(result[i], results[0][i])) << "result " << i;
  }
}

TEST_P(Linear, BiasGradientMatchesFloat64) {
  at::manual_seed(5);
  for (const auto& [t, h, o] : kShapes) {
    for (const at::ScalarType dtype : kDtypes) {
      for (const Kernels kernels : kBoth) {
        const Tensor dy = testing::randn({t, o}).to(dtype), db = testing::ones({o}, wide_of(dtype));
        bias_grad_(db, dy, kernels);
        const double near = dtype == at::kDouble ? 1e-13 : 2e-6;
        const auto what = fmt::format("({}, {}) {}", t, o, c10::toString(dtype));
        EXPECT_TENSOR_NEAR(db, dy.to(at::kDouble).sum(0) + 1, {.abs = 10 * near, .rel_to_max = near, .what = what});
      }
    }
  }
}

TEST_P(Linear, GradientsMatchDifferences) {
  at::manual_seed(6);
  for (const Kernels kernels : kBoth) {
    const auto gradients = [&](const Tensor& dy, const std::vector<Tensor>& in) -> std::vector<Tensor> {
      const Tensor dw = at::empty_like(in[1]), db = at::zeros({dy.size(1)}, dy.options());
      linear_wgrad_(dw, dy, in[0], /*accumulate=*/false, kernels);
      bias_grad_(db, dy, kernels);
      const Tensor dx = linear_dgrad(dy, in[1], kernels);
      return in.size() == 3 ? std::vector<Tensor>{dx, dw, db} : std::vector<Tensor>{dx, dw};
    };
    testing::expect_gradients_match_differences(
        [&](const std::vector<Tensor>& in) { return linear_forward(in[0], in[1], in[2], kernels); }, gradients,
        {testing::randn({3, 5}, at::kDouble), testing::randn({4, 5}, at::kDouble), testing::randn({4}, at::kDouble)},
        "linear");
    testing::expect_gradients_match_differences(
        [&](const std::vector<Tensor>& in) { return linear_forward(in[0], in[1], {}, kernels); }, gradients,
        {testing::randn({3, 5}, at::kDouble), testing::randn({4, 5}, at::kDouble)}, "linear without bias");
  }
}

TEST_P(Embedding, PicksRowsAndGivesZerosForOtherRanksIds) {
  at::manual_seed(7);
  const Tensor ids = testing::tensor({10, 9, 14, 15, 12, 10, 0}, at::kLong);
  for (const at::ScalarType dtype : kDtypes) {
    const Tensor table = testing::randn({5, 13}).to(dtype);
    const Tensor zero = testing::zeros({13}, dtype);
    const Tensor expected = at::stack({table[0], zero, table[4], zero, table[2], table[0], zero});
    for (const Kernels kernels : kBoth) EXPECT_TENSOR_NEAR(embedding_forward(ids, table, 10, kernels), expected);
  }
}

TEST_P(Embedding, WeightGradientAddsInTokenOrder) {
  at::manual_seed(8);
  const Tensor ids = testing::randint(5, 40, {200});
  for (const at::ScalarType dtype : kDtypes) {
    const Tensor dy = testing::randn({200, 19}).to(dtype), before = testing::randn({30, 19}, wide_of(dtype));
    const Tensor expected = before.clone();
    for (int64_t i = 0; i < 200; ++i) {
      const int64_t row = ids[i].item<int64_t>() - 7;
      if (row >= 0 && row < 30) expected[row] += dy[i].to(wide_of(dtype));
    }
    for (const Kernels kernels : kBoth) {
      const Tensor dw = before.clone();
      embedding_wgrad_(dw, ids, dy, 7, kernels);
      EXPECT_TRUE(at::equal(dw, expected)) << c10::toString(dtype);
    }
  }
}

TEST(Linear, WrongArgumentsAreNamed) {
  const Tensor x = testing::randn({3, 5}), w = testing::randn({4, 6});
  try {
    linear_forward(x, w);
    FAIL() << "shapes that do not fit passed";
  } catch (const UserError& error) {
    EXPECT_EQ(error.message(), "linear_forward: w has shape (4, 6), but must be (4, 5)");
  }
  try {
    linear_wgrad_(testing::zeros({4, 5}, at::kBFloat16), testing::randn({3, 4}).to(at::kBFloat16), x.to(at::kBFloat16));
    FAIL() << "a narrow gradient buffer passed";
  } catch (const UserError& error) {
    EXPECT_EQ(error.message(), "linear_wgrad_: dw is BFloat16, but must be Float");
  }
}

MEGALITH_ON_EVERY_DEVICE(Linear);
MEGALITH_ON_EVERY_DEVICE(Embedding);

}  // namespace
}  // namespace megalith::ops::linear_test
