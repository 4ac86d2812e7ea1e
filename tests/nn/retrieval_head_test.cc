// The loss of questions and texts against the formula, on one rank and on two, and where a text comes among others.
#include "nn/retrieval_head.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "comm/groups.h"
#include "comm/thread_world.h"

namespace megalith {
namespace {

constexpr int64_t kRows = 6, kSize = 5;

at::Tensor vectors(double first) {
  return at::arange(kRows * kSize, at::kDouble).add(first).sin().view({kRows, kSize});
}

// -log softmax, row by row in plain numbers.
std::vector<double> losses_by_hand(const at::Tensor& queries, const at::Tensor& contexts, double divisor) {
  std::vector<double> losses;
  for (int64_t i = 0; i < kRows; ++i) {
    double sum = 0, own = 0;
    for (int64_t j = 0; j < kRows; ++j) {
      double score = 0;
      for (int64_t k = 0; k < kSize; ++k) score += queries[i][k].item<double>() * contexts[j][k].item<double>();
      sum += std::exp(score / divisor);
      if (j == i) own = score / divisor;
    }
    losses.push_back(std::log(sum) - own);
  }
  return losses;
}

struct Gradients {
  at::Tensor queries, contexts;
  double sum = 0;
};

// Rows [first, first + count) as a rank has them.
Gradients gradients_of(const Groups& groups, int64_t first, int64_t count) {
  const RetrievalHead head({.groups = &groups, .dtype = at::kDouble},
                           {.vector_size = kSize, .score_divisor = 2, .top_ks = {1}});
  const at::Tensor queries = vectors(0).narrow(0, first, count).clone().set_requires_grad(true);
  const at::Tensor contexts = vectors(0.4).narrow(0, first, count).clone().set_requires_grad(true);
  const RetrievalHead::Loss loss = head.loss(queries, contexts, {.per_weight = at::full({}, 0.5, at::kDouble)});
  const auto found = torch::autograd::grad({loss.term.objective}, {queries, contexts});
  return {found[0], found[1], loss.term.sum.item<double>()};
}

TEST(RetrievalHead, LossIsTheFormulas) {
  const Groups groups = Groups::single();
  const RetrievalHead head({.groups = &groups, .dtype = at::kDouble},
                           {.vector_size = kSize, .score_divisor = 3, .top_ks = {}});
  const RetrievalHead::Loss loss = head.loss(vectors(0), vectors(0.4), {});
  const std::vector<double> expected = losses_by_hand(vectors(0), vectors(0.4), 3);
  double sum = 0;
  for (int64_t i = 0; i < kRows; ++i) {
    EXPECT_NEAR(loss.row_losses[i].item<double>(), expected[static_cast<size_t>(i)], 1e-13) << "row " << i;
    sum += expected[static_cast<size_t>(i)];
  }
  EXPECT_NEAR(loss.term.sum.item<double>(), sum, 1e-12);
  EXPECT_EQ(loss.term.weight.item<double>(), kRows);
}

TEST(RetrievalHead, GradientsFollowTheLoss) {
  const Groups groups = Groups::single();
  const Gradients found = gradients_of(groups, 0, kRows);
  constexpr double kStep = 1e-6;
  for (const bool is_query : {true, false}) {
    for (const int64_t row : {0, 3}) {
      at::Tensor moved = vectors(is_query ? 0 : 0.4);
      moved[row][2] += kStep;
      const std::vector<double> there =
          is_query ? losses_by_hand(moved, vectors(0.4), 2) : losses_by_hand(vectors(0), moved, 2);
      const std::vector<double> here = losses_by_hand(vectors(0), vectors(0.4), 2);
      double slope = 0;
      for (size_t i = 0; i < here.size(); ++i) slope += (there[i] - here[i]) / kStep;
      const at::Tensor& gradient = is_query ? found.queries : found.contexts;
      EXPECT_NEAR(gradient[row][2].item<double>(), 0.5 * slope, 1e-5);  // the scale; differences are of first order
    }
  }
}

TEST(RetrievalHead, RowsOfSeveralRanksAreOneSet) {
  const Groups one = Groups::single();
  const Gradients whole = gradients_of(one, 0, kRows);
  for (const int dp : {2, 3}) {
    const int64_t count = kRows / dp;
    std::vector<Gradients> parts(static_cast<size_t>(dp));
    ThreadWorld(dp).run(Mesh({.dp = dp}), [&](Groups& groups) {
      parts[static_cast<size_t>(groups.rank)] = gradients_of(groups, groups.rank * count, count);
    });
    double sum = 0;
    for (int rank = 0; rank < dp; ++rank) {
      const Gradients& part = parts[static_cast<size_t>(rank)];
      EXPECT_TRUE(at::allclose(part.queries, whole.queries.narrow(0, rank * count, count), 1e-12, 1e-14)) << dp;
      EXPECT_TRUE(at::allclose(part.contexts, whole.contexts.narrow(0, rank * count, count), 1e-12, 1e-14)) << dp;
      sum += part.sum;
    }
    EXPECT_NEAR(sum, whole.sum, 1e-12);
  }
}

TEST(RetrievalHead, AccuraciesCountWhereTheRightTextComes) {
  const Groups groups = Groups::single();
  const RetrievalHead head({.groups = &groups}, {.vector_size = 4, .score_divisor = 1, .top_ks = {1, 2, 4}});
  // Question 0 finds its text first, 1 second, 2 last; 3 scores all alike, and three texts come before its own.
  const at::Tensor contexts = at::eye(4);
  const at::Tensor queries = at::tensor({3., 2., 1., 0., 3., 2., 1., 0., 3., 2., 0., 1., 1., 1., 1., 1.}).view({4, 4});
  const RetrievalHead::Loss loss = head.loss(queries.to(at::kFloat), contexts.to(at::kFloat), {});
  ASSERT_EQ(loss.correct.size(), 3U);
  const std::vector<double> expected = {100, 200, 400};
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(loss.correct[i].sum.item<double>(), expected[i]) << loss.correct[i].name;
    EXPECT_EQ(loss.correct[i].weight.item<double>(), 4);
    EXPECT_FALSE(loss.correct[i].objective.defined());
  }
  EXPECT_EQ(loss.correct[1].name, "top2_acc");
}

TEST(RetrievalHead, ScoresOfRoundedVectorsAreExact) {
  const Groups groups = Groups::single();
  const RetrievalHead head({.groups = &groups, .dtype = at::kBFloat16},
                           {.vector_size = 64, .score_divisor = 1, .top_ks = {}});
  // Two texts whose scores differ by less than bf16 tells from 64.
  at::Tensor contexts = at::ones({2, 64}, at::kBFloat16);
  contexts[1][0] = 1.125;
  const RetrievalHead::Loss loss = head.loss(at::ones({2, 64}, at::kBFloat16), contexts, {});
  EXPECT_NEAR(loss.row_losses[0].item<double>(), std::log(1 + std::exp(0.125)), 1e-6);
  EXPECT_EQ(loss.term.sum.scalar_type(), at::kFloat);
}

}  // namespace
}  // namespace megalith
