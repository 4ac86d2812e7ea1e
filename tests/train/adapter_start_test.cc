// Starts of adapters that are parts of the weight: their products, and that a decomposition has one sign.
#include "train/adapter_start.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace megalith {
namespace {

constexpr int64_t kRows = 30, kColumns = 20, kRank = 4;
constexpr double kScale = 3;

// Singular values 10, 9, … with gaps, so that four of them are a part that iterations find.
at::Tensor made_weight() {
  at::manual_seed(3);
  const at::Tensor u = std::get<0>(at::linalg_qr(at::randn({kRows, kColumns}, at::kDouble))),
                   v = std::get<0>(at::linalg_qr(at::randn({kColumns, kColumns}, at::kDouble)));
  const at::Tensor values = at::pow(at::Scalar(0.5), at::arange(kColumns, at::kDouble)) * 10;
  return at::mm(u * values, v.t());
}

double distance(const at::Tensor& a, const at::Tensor& b) { return (a - b).abs().max().item<double>(); }

TEST(AdapterStart, PissaHasTheLargestSingularValuesInEqualHalves) {
  const at::Tensor weight = made_weight();
  const auto [u, s, vh] = at::linalg_svd(weight, /*full_matrices=*/false);
  const at::Tensor best = at::mm(u.narrow(1, 0, kRank) * s.narrow(0, 0, kRank), vh.narrow(0, 0, kRank));
  for (const char* word : {"pissa", "pissa_niter_6"}) {
    for (const at::Tensor& matrix : {weight, weight.t().contiguous()}) {
      const auto [a, b] = decomposed(matrix, kRank, kScale, *parse_adapter_start(word), 7, "q_proj");
      EXPECT_EQ(a.sizes(), (at::IntArrayRef{kRank, matrix.size(1)}));
      EXPECT_EQ(b.sizes(), (at::IntArrayRef{matrix.size(0), kRank}));
      const at::Tensor expected = matrix.size(0) == kRows ? best : best.t();
      // Six iterations leave (1/2)^13 of the fifth value's share.
      EXPECT_LT(distance(kScale * at::mm(b, a), expected), std::string_view(word) == "pissa" ? 1e-12 : 1e-3) << word;
      const at::Tensor halves = (s.narrow(0, 0, kRank) / kScale).sqrt();
      EXPECT_LT(distance(a.norm(2, 1), halves), 1e-3);
      EXPECT_LT(distance(b.norm(2, 0), halves), 1e-3);
    }
  }
}

TEST(AdapterStart, OloraHasTheFirstColumnsOfQ) {
  const at::Tensor weight = made_weight();
  const auto [q, r] = at::linalg_qr(weight);
  const auto [a, b] = decomposed(weight, kRank, kScale, *parse_adapter_start("olora"), 7, "q_proj");
  EXPECT_LT(distance(at::mm(b, a), at::mm(q.narrow(1, 0, kRank), r.narrow(0, 0, kRank))), 1e-12);
  EXPECT_LT(distance(at::mm(b.t(), b), at::eye(kRank, at::kDouble)), 1e-12);
}

// Libraries differ in the signs of singular vectors, and layouts in the number of threads.
TEST(AdapterStart, TheLargestElementOfEachRowOfAIsPositive) {
  for (const char* word : {"pissa", "pissa_niter_2", "olora"}) {
    const auto [a, b] = decomposed(-made_weight(), kRank, kScale, *parse_adapter_start(word), 7, "q_proj");
    EXPECT_GT(a.gather(1, a.abs().argmax(1, /*keepdim=*/true)).min().item<double>(), 0) << word;
  }
}

}  // namespace
}  // namespace megalith
