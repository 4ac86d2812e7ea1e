// grouped_linear: products of many experts' rows against float64, with empty experts, all rows on one, and none at all.
#include "ops/grouped_linear/grouped_linear.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <vector>

#include "core/error.h"
#include "support/gradients.h"
#include "support/on_device.h"
#include "support/tensor_near.h"

namespace megalith::ops::grouped_linear_test {
namespace {

using at::Tensor;
using GroupedLinear = testing::OnDevice;

constexpr at::ScalarType kDtypes[] = {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf};
constexpr Kernels kBoth[] = {Kernels::kFused, Kernels::kReference};

at::ScalarType wide_of(at::ScalarType dtype) { return dtype == at::kDouble ? at::kDouble : at::kFloat; }

// One rounding of the result to 16 bits; sums of h or o products in fp32.
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

struct Case {
  const char* name;
  std::vector<int64_t> counts;
  int64_t h, o;

  int64_t num_experts() const { return static_cast<int64_t>(counts.size()); }
  Tensor offsets() const {
    std::vector<int64_t> rows{0};
    for (const int64_t count : counts) rows.push_back(rows.back() + count);
    return testing::tensor(rows, at::kLong);
  }
  int64_t rows() const { return offsets()[num_experts()].item<int64_t>(); }
};

// One element; primes; blocks of 240, 256 and 128 and panels of 64 with tails; more rows than one pass of the weight
// gradient takes, and more of h than one block of k.
const std::vector<Case>& cases() {
  static const std::vector<Case> all = {{"one element", {1}, 1, 1},
                                        {"primes", {3, 1, 2}, 5, 7},
                                        {"uneven", {1, 300, 17, 64}, 67, 130},
                                        {"empty experts", {0, 33, 0, 0, 70, 0}, 64, 96},
                                        {"all rows on one", {0, 0, 130, 0}, 130, 97},
                                        {"no rows", {0, 0, 0}, 8, 16},
                                        {"long", {2100, 0, 5}, 40, 33},
                                        {"deep", {9, 300}, 1100, 70}};
  return all;
}

Tensor exact_product(const Case& c, const Tensor& rows, const Tensor& w, bool is_transposed) {
  const Tensor offsets = c.offsets(), wide = rows.to(at::kDouble);
  Tensor y = testing::zeros({c.rows(), w.size(is_transposed ? 1 : 2)}, at::kDouble);
  for (int64_t j = 0; j < c.num_experts(); ++j) {
    const int64_t first = offsets[j].item<int64_t>(), count = c.counts[static_cast<size_t>(j)];
    const Tensor matrix = w[j].to(at::kDouble);
    y.narrow(0, first, count).copy_(at::mm(wide.narrow(0, first, count), is_transposed ? matrix.t() : matrix));
  }
  return y;
}

Tensor exact_wgrad(const Case& c, const Tensor& dy, const Tensor& x) {
  const Tensor offsets = c.offsets();
  Tensor dw = testing::zeros({c.num_experts(), c.o, c.h}, at::kDouble);
  for (int64_t j = 0; j < c.num_experts(); ++j) {
    const int64_t first = offsets[j].item<int64_t>(), count = c.counts[static_cast<size_t>(j)];
    dw[j].copy_(at::mm(dy.narrow(0, first, count).to(at::kDouble).t(), x.narrow(0, first, count).to(at::kDouble)));
  }
  return dw;
}

TEST_P(GroupedLinear, ForwardAndInputGradientMatchFloat64) {
  at::manual_seed(1);
  for (const Case& c : cases()) {
    const Tensor offsets = c.offsets();
    for (const at::ScalarType dtype : kDtypes) {
      const Tensor x = testing::randn({c.rows(), c.h}).to(dtype), dy = testing::randn({c.rows(), c.o}).to(dtype);
      const Tensor w = testing::randn({c.num_experts(), c.o, c.h}).to(dtype);
      const Tensor y = exact_product(c, x, w, true), dx = exact_product(c, dy, w, false);
      const double near = tolerance_of(dtype);
      for (const Kernels kernels : kBoth) {
        const auto what = fmt::format("{} {} {}", c.name, c10::toString(dtype), static_cast<int>(kernels));
        EXPECT_TENSOR_NEAR(grouped_linear_forward(x, w, offsets, kernels), y, {.rel_to_max = near, .what = what});
        EXPECT_TENSOR_NEAR(grouped_linear_dgrad(dy, w, offsets, kernels), dx,
                           {.rel_to_max = near, .what = what + " dx"});
      }
    }
  }
}

TEST_P(GroupedLinear, WeightGradientIsSummedWithoutRounding) {
  at::manual_seed(2);
  for (const Case& c : cases()) {
    const Tensor offsets = c.offsets();
    for (const at::ScalarType dtype : kDtypes) {
      // Rows of a wider tensor: only they must be contiguous.
      const Tensor x = testing::randn({c.rows(), c.h + 3}).to(dtype).narrow(1, 1, c.h);
      const Tensor dy = testing::randn({c.rows(), c.o + 2}).to(dtype).narrow(1, 2, c.o);
      const Tensor exact = exact_wgrad(c, dy, x);
      const Tensor before = testing::randn(exact.sizes(), wide_of(dtype));
      for (const Kernels kernels : kBoth) {
        const auto what = fmt::format("{} {} {}", c.name, c10::toString(dtype), static_cast<int>(kernels));
        // Products of 16-bit numbers are exact in fp32; at most 2100 of them are summed in fp32, never in 16 bits.
        const double near = dtype == at::kDouble ? 1e-14 : 2e-6;
        const Tensor summed = before.clone();
        grouped_linear_wgrad_(summed, dy, x, offsets, true, kernels);
        EXPECT_TENSOR_NEAR(summed, before + exact, {.abs = near, .rel_to_max = near, .what = what + " summed"});
        const Tensor fresh = at::full_like(before, std::nan(""));
        grouped_linear_wgrad_(fresh, dy, x, offsets, false, kernels);
        EXPECT_TENSOR_NEAR(fresh, exact, {.abs = 1e-30, .rel_to_max = near, .what = what + " fresh"});
      }
    }
  }
}

TEST_P(GroupedLinear, RowsMayBeStridedAndWeightsFlat) {
  at::manual_seed(3);
  const Case c{"strided", {5, 0, 71}, 66, 65};
  for (const at::ScalarType dtype : kDtypes) {
    const Tensor x = testing::randn({c.rows(), c.h + 7}).to(dtype).narrow(1, 4, c.h);
    const Tensor w = testing::randn({3 * c.o, c.h}).to(dtype), offsets = c.offsets();
    const Tensor y = grouped_linear_forward(x, w, offsets);
    const Tensor dense = grouped_linear_forward(x.contiguous(), w.view({3, c.o, c.h}), offsets);
    if (GetParam().is_cpu()) {
      EXPECT_TRUE(at::equal(y, dense));
    } else {
      // LibTorch's product may add in another order when rows have gaps; 16-bit results then round to a neighbour.
      EXPECT_TENSOR_NEAR(y, dense, {.abs = 1e-30, .rel_to_max = dtype == at::kBFloat16 ? 1.0 / 128 : 1e-3});
    }
    const Tensor dw = testing::ones({3 * c.o, c.h}, wide_of(dtype)),
                 same = testing::ones({3, c.o, c.h}, wide_of(dtype));
    grouped_linear_wgrad_(dw, y, x, offsets);
    grouped_linear_wgrad_(same, y, x.contiguous(), offsets);
    EXPECT_TRUE(at::equal(dw.view_as(same), same)) << c10::toString(dtype);
  }
}

TEST(GroupedLinear, NumbersDoNotDependOnThreadsNorOnOtherExperts) {
  at::manual_seed(4);
  const int before = at::get_num_threads();
  const Case c{"uneven", {700, 0, 30, 1, 300}, 200, 330};
  const Tensor offsets = c.offsets();
  for (const at::ScalarType dtype : kDtypes) {
    const Tensor x = testing::randn({c.rows(), c.h}).to(dtype), dy = testing::randn({c.rows(), c.o}).to(dtype);
    const Tensor w = testing::randn({c.num_experts(), c.o, c.h}).to(dtype);
    std::vector<std::vector<Tensor>> results;
    for (const int threads : {1, 2, 3, 7}) {
      at::set_num_threads(threads);
      const Tensor dw = testing::ones({c.num_experts(), c.o, c.h}, wide_of(dtype));
      grouped_linear_wgrad_(dw, dy, x, offsets);
      results.push_back({grouped_linear_forward(x, w, offsets), grouped_linear_dgrad(dy, w, offsets), dw});
    }
    at::set_num_threads(before);
    for (const auto& result : results) {
      for (size_t i = 0; i < result.size(); ++i) {
        EXPECT_TRUE(at::equal(result[i], results[0][i])) << c10::toString(dtype) << " result " << i;
      }
    }
    // Only the last expert.
    const Tensor alone = testing::tensor({0, 300}, at::kLong);
    EXPECT_TRUE(at::equal(grouped_linear_forward(x.narrow(0, 731, 300), w.narrow(0, 4, 1), alone),
                          results[0][0].narrow(0, 731, 300)))
        << c10::toString(dtype);
  }
}

TEST_P(GroupedLinear, GradientsMatchDifferences) {
  at::manual_seed(5);
  const Tensor offsets = testing::tensor({0, 2, 2, 5}, at::kLong);
  for (const Kernels kernels : kBoth) {
    const auto forward = [&](const std::vector<Tensor>& in) {
      return grouped_linear_forward(in[0], in[1], offsets, kernels);
    };
    const auto backward = [&](const Tensor& dy, const std::vector<Tensor>& in) -> std::vector<Tensor> {
      const Tensor dw = at::empty_like(in[1]);
      grouped_linear_wgrad_(dw, dy, in[0], offsets, /*accumulate=*/false, kernels);
      return {grouped_linear_dgrad(dy, in[1], offsets, kernels), dw};
    };
    const std::vector<Tensor> inputs{testing::randn({5, 4}, at::kDouble), testing::randn({3, 3, 4}, at::kDouble)};
    testing::expect_gradients_match_differences(forward, backward, inputs,
                                                kernels == Kernels::kFused ? "fused" : "reference");
  }
}

// The GPU's path, on the CPU, where ATen composes the grouped product.
TEST_P(GroupedLinear, GroupedProductOfGpusMatchesTheReference) {
  at::manual_seed(6);
  const Case c{"grouped", {5, 0, 71, 20}, 64, 96};
  const Tensor x = testing::randn({c.rows(), c.h}).to(at::kBFloat16),
               dy = testing::randn({c.rows(), c.o}).to(at::kBFloat16);
  const Tensor w = testing::randn({4, c.o, c.h}).to(at::kBFloat16), offsets = c.offsets();
  ASSERT_TRUE(takes_grouped_product(x, w));
  const double near = tolerance_of(at::kBFloat16);
  EXPECT_TENSOR_NEAR(kGroupedLinearGpuAten.forward(x, w, offsets), exact_product(c, x, w, true), {.rel_to_max = near});
  EXPECT_TENSOR_NEAR(kGroupedLinearGpuAten.dgrad(dy, w, offsets), exact_product(c, dy, w, false), {.rel_to_max = near});
  EXPECT_FALSE(takes_grouped_product(x.to(at::kFloat), w));
  EXPECT_FALSE(takes_grouped_product(x.narrow(1, 0, 60), w.narrow(2, 0, 60)));
  EXPECT_TENSOR_NEAR(kGroupedLinearGpuAten.forward(x.to(at::kFloat), w.to(at::kFloat), offsets),
                     exact_product(c, x, w, true), {.rel_to_max = 2e-6});
}

TEST(GroupedLinear, MetaTensorsGiveShapes) {
  const auto meta = at::device(at::kMeta).dtype(at::kBFloat16);
  const Tensor w = at::empty({3, 7, 5}, meta), offsets = at::empty({4}, meta.dtype(at::kLong));
  EXPECT_EQ(grouped_linear_forward(at::empty({11, 5}, meta), w, offsets).sizes(), at::IntArrayRef({11, 7}));
  EXPECT_EQ(grouped_linear_dgrad(at::empty({11, 7}, meta), w, offsets).sizes(), at::IntArrayRef({11, 5}));
}

TEST(GroupedLinear, WrongArgumentsAreNamed) {
  const auto offsets = [](std::vector<int64_t> rows) { return testing::tensor(rows, at::kLong); };
  const Tensor x = testing::ones({5, 4}), w = testing::ones({2, 3, 4});
  EXPECT_NO_THROW(grouped_linear_forward(x, w, offsets({0, 5, 5})));
  EXPECT_THROW(grouped_linear_forward(x, w, offsets({0, 5, 4})), UserError);
  EXPECT_THROW(grouped_linear_forward(x, w, offsets({0, 6, 5})), UserError);
  EXPECT_THROW(grouped_linear_forward(x, w, offsets({1, 2, 5})), UserError);
  EXPECT_THROW(grouped_linear_forward(x, w, offsets({0, 2, 4})), UserError);
  EXPECT_THROW(grouped_linear_forward(x, w, offsets({0, 5})), UserError);
  EXPECT_THROW(grouped_linear_forward(x, w, offsets({0})), UserError);
  EXPECT_THROW(grouped_linear_forward(x, w, testing::tensor({0, 2, 5}, at::kInt)), UserError);
  EXPECT_THROW(grouped_linear_forward(x, w.view({6, 4}), offsets({0, 1, 2, 3, 5})), UserError);
  EXPECT_THROW(grouped_linear_forward(x, w.transpose(1, 2), offsets({0, 2, 5})), UserError);
  EXPECT_THROW(grouped_linear_forward(x, w.to(at::kDouble), offsets({0, 2, 5})), UserError);
  EXPECT_THROW(grouped_linear_forward(testing::ones({4, 5}).t(), w, offsets({0, 2, 5})), UserError);
  EXPECT_THROW(grouped_linear_dgrad(x, w, offsets({0, 2, 5})), UserError);
  EXPECT_THROW(
      grouped_linear_wgrad_(testing::ones({2, 3, 4}, at::kDouble), testing::ones({5, 3}), x, offsets({0, 2, 5})),
      UserError);
  EXPECT_THROW(grouped_linear_wgrad_(testing::ones({2, 4, 4}), testing::ones({5, 3}), x, offsets({0, 2, 5})),
               UserError);
}

MEGALITH_ON_EVERY_DEVICE(GroupedLinear);

}  // namespace
}  // namespace megalith::ops::grouped_linear_test
