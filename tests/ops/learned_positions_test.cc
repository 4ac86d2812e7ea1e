// Learned positions are the embedding's operators on position ids: a table of positions, ids that repeat in every
// sample and begin again after a document's end.
#include <gtest/gtest.h>

#include <vector>

#include "ops/linear/linear.h"
#include "support/dtypes.h"
#include "support/on_device.h"
#include "support/tensor_near.h"

namespace megalith::ops::learned_positions_test {
namespace {

using at::Tensor;
using LearnedPositions = testing::OnDevice;

constexpr Kernels kBoth[] = {Kernels::kFused, Kernels::kReference};

at::ScalarType wide_of(at::ScalarType dtype) { return dtype == at::kDouble ? at::kDouble : at::kFloat; }

TEST_P(LearnedPositions, EverySampleHasTheTablesFirstRows) {
  at::manual_seed(1);
  constexpr int64_t b = 3, s = 29, h = 13, num_positions = 31;
  const Tensor ids = testing::arange(s).repeat({b});
  for (const at::ScalarType dtype : testing::kFloatingDtypes) {
    const Tensor table = testing::randn({num_positions, h}).to(dtype);
    const Tensor expected = table.narrow(0, 0, s).repeat({b, 1});
    for (const Kernels kernels : kBoth) {
      EXPECT_TENSOR_NEAR(embedding_forward(ids, table, 0, kernels), expected, {.what = c10::toString(dtype)});
    }
  }
}

TEST_P(LearnedPositions, GradientOfARowIsSummedOverSamplesInOrder) {
  at::manual_seed(2);
  constexpr int64_t b = 5, s = 29, h = 13, num_positions = 31;
  const Tensor ids = testing::arange(s).repeat({b});
  for (const at::ScalarType dtype : testing::kFloatingDtypes) {
    const Tensor dy = testing::randn({b * s, h}).to(dtype), before = testing::randn({num_positions, h}, wide_of(dtype));
    Tensor expected = before.clone();
    for (int64_t sample = 0; sample < b; ++sample) {
      expected.narrow(0, 0, s).add_(dy.narrow(0, sample * s, s).to(wide_of(dtype)));
    }
    for (const Kernels kernels : kBoth) {
      const Tensor dw = before.clone();
      embedding_wgrad_(dw, ids, dy, 0, kernels);
      // Positions that no sample reaches keep what they had.
      EXPECT_TENSOR_NEAR(dw, expected, {.what = c10::toString(dtype)});
    }
  }
}

TEST_P(LearnedPositions, DocumentsBeginAgainAtTheFirstRow) {
  at::manual_seed(3);
  // A sample of 11 tokens that holds documents of 4, 1 and 6.
  const std::vector<int64_t> lengths = {4, 1, 6};
  std::vector<Tensor> parts;
  for (const int64_t length : lengths) parts.push_back(testing::arange(length));
  const Tensor ids = at::cat(parts), table = testing::randn({8, 5}), dy = testing::randn({11, 5});
  for (const Kernels kernels : kBoth) {
    const Tensor y = embedding_forward(ids, table, 0, kernels), dw = testing::zeros({8, 5});
    embedding_wgrad_(dw, ids, dy, 0, kernels);
    Tensor expected = testing::zeros({8, 5});
    int64_t start = 0;
    for (const int64_t length : lengths) {
      EXPECT_TENSOR_NEAR(y.narrow(0, start, length), table.narrow(0, 0, length));
      expected.narrow(0, 0, length).add_(dy.narrow(0, start, length));
      start += length;
    }
    EXPECT_TENSOR_NEAR(dw, expected);
  }
}

MEGALITH_ON_EVERY_DEVICE(LearnedPositions);

}  // namespace
}  // namespace megalith::ops::learned_positions_test
