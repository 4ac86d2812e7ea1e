// linear_cross_entropy: losses and gradients against float64 autograd; chunks, padding, rows that do not count.
#include "ops/linear_cross_entropy/linear_cross_entropy.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <limits>

#include "core/error.h"
#include "support/on_device.h"
#include "support/tensor_near.h"

namespace megalith::ops::linear_cross_entropy_test {
namespace {

using at::Tensor;
using LinearCrossEntropy = testing::OnDevice;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr Kernels kBoth[] = {Kernels::kFused, Kernels::kReference};

at::ScalarType wide_of(at::ScalarType dtype) { return dtype == at::kDouble ? at::kDouble : at::kFloat; }

struct Head {
  Tensor x, w, labels, row_scale;
  int64_t valid;
};

// Every fifth row does not count and has the label that data sets give it.
Head make_head(int64_t t, int64_t h, int64_t v, int64_t valid, at::ScalarType dtype) {
  Head head{testing::randn({t, h}).to(dtype), (testing::randn({v, h}) / 4).to(dtype), testing::randint(0, valid, {t}),
            testing::rand({t}, wide_of(dtype)) + 0.5, valid};
  for (int64_t i = 4; i < t; i += 5) {
    head.labels[i] = -100;
    head.row_scale[i] = 0;
  }
  return head;
}

struct Exact {
  Tensor losses, dx, dw;
};
Exact compute_exact(const Head& head) {
  const auto leaf = [](const Tensor& x) { return x.to(at::kDouble).clone().requires_grad_(true); };
  const Tensor x = leaf(head.x), w = leaf(head.w);
  const Tensor log_p = at::log_softmax(at::mm(x, w.narrow(0, 0, head.valid).t()), 1);
  const Tensor counts = head.row_scale != 0;
  const Tensor losses = -log_p.gather(1, head.labels.clamp(0).unsqueeze(1)).squeeze(1) * counts;
  const auto d = torch::autograd::grad({(losses * head.row_scale.to(at::kDouble)).sum()}, {x, w});
  return {losses.detach(), d[0], d[1]};
}

void expect_matches(const Head& head, int64_t chunk_rows, const std::string& what) {
  const at::ScalarType dtype = head.x.scalar_type();
  const Exact exact = compute_exact(head);
  // bf16 logits of up to 8 are rounded by up to 2^-6; their gradients by 2^-9 and by the error of the softmax.
  const bool is_bf16 = dtype == at::kBFloat16, is_double = dtype == at::kDouble;
  const double near = is_bf16 ? 1.0 / 64 : is_double ? 1e-13 : 5e-6;
  for (const Kernels kernels : kBoth) {
    const LinearCrossEntropyOptions options{.valid_vocab = head.valid, .chunk_rows = chunk_rows, .kernels = kernels};
    const Tensor before = testing::randn(head.w.sizes(), wide_of(dtype)), dw = before.clone();
    const auto [losses, dx] = linear_cross_entropy(head.x, head.w, head.labels, head.row_scale, true, dw, options);
    const auto name = what + (kernels == Kernels::kReference ? " reference" : "");
    EXPECT_TENSOR_NEAR(losses, exact.losses, {.abs = near, .rel = near, .what = name + " losses"});
    EXPECT_EQ(dx.scalar_type(), dtype);
    EXPECT_TENSOR_NEAR(dx, exact.dx, {.rel_to_max = 2 * near, .what = name + " dx"});
    EXPECT_TENSOR_NEAR(dw - before, exact.dw, {.abs = 1e-6, .rel_to_max = 2 * near, .what = name + " dw"});
    const int64_t padding = head.w.size(0) - head.valid;
    EXPECT_TRUE(at::equal(dw.narrow(0, head.valid, padding), before.narrow(0, head.valid, padding)))
        << name << ": padding got a gradient";
    const auto [alone, none] = linear_cross_entropy(head.x, head.w, head.labels, head.row_scale, false, {}, options);
    EXPECT_TENSOR_NEAR(alone, losses, {.what = name + " losses without gradient"});
    EXPECT_FALSE(none.defined());
  }
}

TEST_P(LinearCrossEntropy, MatchesFloat64WithChunksTailsAndPadding) {
  at::manual_seed(1);
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const auto name = c10::toString(dtype);
    expect_matches(make_head(67, 24, 131, 131, dtype), 1024, fmt::format("{} one chunk", name));
    expect_matches(make_head(67, 24, 131, 131, dtype), 16, fmt::format("{} a chunk of three", name));
    expect_matches(make_head(67, 24, 128, 101, dtype), 30, fmt::format("{} padded", name));
    expect_matches(make_head(3, 5, 2, 1, dtype), 1, fmt::format("{} one column", name));
  }
}

TEST_P(LinearCrossEntropy, FrozenHeadGetsNoGradientButPassesItOn) {
  at::manual_seed(2);
  const Head head = make_head(20, 8, 30, 30, at::kFloat);
  const auto [losses, dx] = linear_cross_entropy(head.x, head.w, head.labels, head.row_scale, true, {});
  EXPECT_TENSOR_NEAR(dx, compute_exact(head).dx, {.rel_to_max = 1e-5});
}

TEST_P(LinearCrossEntropy, RowsThatDoNotCountAreIgnoredWhateverTheyHold) {
  for (const Kernels kernels : kBoth) {
    const Head head = make_head(10, 4, 12, 12, at::kFloat);
    head.x[4].fill_(kInfinity);
    const Tensor dw = testing::zeros({12, 4});
    const auto [losses, dx] = linear_cross_entropy(head.x.narrow(0, 0, 9), head.w, head.labels.narrow(0, 0, 9),
                                                   head.row_scale.narrow(0, 0, 9), true, {}, {.kernels = kernels});
    EXPECT_EQ(losses[4].item<double>(), 0);
    EXPECT_TENSOR_NEAR(dx[4], testing::zeros({4}));
    EXPECT_TRUE(at::isfinite(dx).all().item<bool>());
  }
}

TEST(LinearCrossEntropy, ResultsDoNotDependOnTheNumberOfThreads) {
  at::manual_seed(3);
  const int before = at::get_num_threads();
  const Head head = make_head(150, 64, 500, 490, at::kBFloat16);
  std::vector<std::vector<Tensor>> results;
  for (const int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    const Tensor dw = testing::zeros({500, 64});
    const auto [losses, dx] = linear_cross_entropy(head.x, head.w, head.labels, head.row_scale, true, dw,
                                                   {.valid_vocab = 490, .chunk_rows = 64});
    results.push_back({losses, dx, dw});
  }
  at::set_num_threads(before);
  for (const auto& result : results) {
    for (size_t i = 0; i < result.size(); ++i) EXPECT_TRUE(at::equal(result[i], results[0][i])) << "result " << i;
  }
}

// As on ranks that share the vocabulary: statistics of slices, joined, give the whole's loss and gradient.
TEST_P(LinearCrossEntropy, SlicesOfTheVocabularyJoinToTheWhole) {
  at::manual_seed(4);
  constexpr int64_t kRows = 13, kSlice = 40, kValid = 107;  // of the third slice 27 columns count; of the fourth none
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    const Tensor logits = (testing::randn({kRows, 4 * kSlice}) * 3).to(dtype);
    const Tensor labels = testing::randint(0, kValid, {kRows}), scale = testing::rand({kRows}, wide_of(dtype)) + 0.5;
    const Tensor exact_logits = logits.to(at::kDouble).narrow(1, 0, kValid).clone().requires_grad_(true);
    const Tensor exact = -at::log_softmax(exact_logits, 1).gather(1, labels.unsqueeze(1)).squeeze(1);
    const Tensor exact_gradient = torch::autograd::grad({(exact * scale.to(at::kDouble)).sum()}, {exact_logits})[0];
    const double near = dtype == at::kDouble ? 1e-14 : 3e-6;
    for (const Kernels kernels : kBoth) {
      std::vector<SoftmaxStatistics> parts;
      const auto valid_of = [&](int64_t r) { return std::clamp<int64_t>(kValid - r * kSlice, 0, kSlice); };
      for (int64_t r = 0; r < 4; ++r) {
        const Tensor slice = logits.narrow(1, r * kSlice, kSlice);
        parts.push_back(softmax_statistics(slice, labels, r * kSlice, valid_of(r), kernels));
      }
      EXPECT_TENSOR_NEAR(parts[3].row_max, testing::full({kRows}, -kInfinity), {.what = "row_max without columns"});
      Tensor highest = parts[0].row_max, sum = at::zeros_like(highest), target = at::zeros_like(highest);
      for (const auto& part : parts) highest = at::maximum(highest, part.row_max);
      for (const auto& part : parts) {
        sum += part.sum_exp * (part.row_max - highest).exp();
        target += part.target_logit;
      }
      const Tensor lse = highest + sum.log();
      EXPECT_TENSOR_NEAR(lse - target, exact, {.abs = 4 * near, .rel = near, .what = "loss"});
      const Tensor gradient = logits.clone();
      for (int64_t r = 0; r < 4; ++r) {
        const Tensor slice = gradient.narrow(1, r * kSlice, kSlice);
        cross_entropy_gradient_(slice, lse, labels, scale, r * kSlice, valid_of(r), kernels);
      }
      // Rounded once; fp16's smallest step is 2^-24.
      const double unit = dtype == at::kBFloat16 ? 0x1p-8 : dtype == at::kHalf ? 0x1p-11 : 2 * near;
      EXPECT_TENSOR_NEAR(gradient.narrow(1, 0, kValid), exact_gradient,
                         {.abs = dtype == at::kDouble ? 1e-14 : 1e-6, .rel = 1.1 * unit, .what = "gradient"});
      EXPECT_TENSOR_NEAR(gradient.narrow(1, kValid, 4 * kSlice - kValid), testing::zeros({kRows, 4 * kSlice - kValid}),
                         {.what = "padding"});
    }
  }
}

TEST_P(LinearCrossEntropy, NonFiniteLogitsReachTheLoss) {
  for (const Kernels kernels : kBoth) {
    const Head head = make_head(3, 4, 9, 9, at::kFloat);
    head.x[1][2] = std::nan("");
    const auto losses =
        std::get<0>(linear_cross_entropy(head.x, head.w, head.labels, head.row_scale, false, {}, {.kernels = kernels}));
    EXPECT_TRUE(std::isnan(losses[1].item<double>()));
    EXPECT_TRUE(std::isfinite(losses[0].item<double>()));
  }
}

TEST(LinearCrossEntropy, WrongArgumentsAreNamed) {
  const Head head = make_head(3, 4, 9, 9, at::kFloat);
  try {
    linear_cross_entropy(head.x, head.w, head.labels, head.row_scale, false, {}, {.valid_vocab = 10});
    FAIL() << "more valid columns than there are passed";
  } catch (const UserError& error) {
    EXPECT_EQ(error.message(), "linear_cross_entropy: valid_vocab is 10, but must be between 0 and the 9 columns");
  }
}

MEGALITH_ON_EVERY_DEVICE(LinearCrossEntropy);

}  // namespace
}  // namespace megalith::ops::linear_cross_entropy_test
