// Learned positions: rows by position ids or counted on, their gradient over tensor-parallel ranks, and positions that
// the table does not have.
#include "nn/embedding.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "support/layer_tools.h"

namespace megalith {
namespace {

using namespace test;

constexpr int64_t kNumPositions = 9, kPositionHidden = 5;

auto make_positions(const LayerContext& context) {
  return std::make_unique<LearnedPositions>(context, "wpe.weight", kNumPositions, kPositionHidden, 0.02);
}

ForwardContext forward_of(int64_t b, int64_t s, at::Tensor position_ids = {}) {
  return {.b = b, .s = s, .position_ids = std::move(position_ids)};
}

// Two sequences of 8, the second of which begins again at its fourth token; row 8 of the table is unused.
at::Tensor documents_of_positions() {
  return at::tensor({0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 0, 1, 2, 3, 4}, at::kLong).view({2, 8});
}

// Added to what comes in, as a model does.
auto run_positions(const at::Tensor& position_ids) {
  return [position_ids](LearnedPositions& positions, const at::Tensor& x) {
    return x + positions.forward(forward_of(2, 8, position_ids));
  };
}

TEST(LearnedPositions, RowsAndTheirGradientsAreThoseOfAnIndexedTable) {
  const Groups groups = Groups::single();
  const TensorMap weights = golden_weights(*make_positions(double_context(groups)), at::kDouble);
  const at::Tensor x = at::randn({16, kPositionHidden}, at::kDouble);
  const at::Tensor dy = at::randn({16, kPositionHidden}, at::kDouble);
  for (const at::Tensor& ids : {documents_of_positions(), at::Tensor(), at::arange(8).unsqueeze(0).expand({2, 8})}) {
    const at::Tensor rows = (ids.defined() ? ids : at::arange(8).repeat({2})).reshape({-1});
    const auto naive = [&](const TensorMap& leaves, const at::Tensor& in) {
      return in + leaves.at("wpe.weight").index_select(0, rows);
    };
    const LayerPass expected = differentiate(naive, weights, x, dy);
    for (const Kernels kernels : {Kernels::kFused, Kernels::kReference}) {
      LayerContext context = double_context(groups);
      context.kernels = kernels;
      expect_near(run_layer(context, make_positions, run_positions(ids), weights, x, dy), expected, 1e-14, "one rank");
    }
    for (const bool is_sequence_parallel : {false, true}) {
      expect_near(run_layer_on_ranks(2, is_sequence_parallel, make_positions, run_positions(ids), weights, x, dy),
                  expected, 1e-14, is_sequence_parallel ? "tp 2 and sequence parallelism" : "tp 2");
    }
  }
}

TEST(LearnedPositions, MicrobatchesAddUp) {
  const Groups groups = Groups::single();
  auto positions = make_positions(double_context(groups));
  positions->weight().initialise(1);
  attach_gradients(*positions);
  for (int microbatch = 0; microbatch < 3; ++microbatch) positions->forward(forward_of(2, 4)).sum().backward();
  at::Tensor expected = at::zeros({kNumPositions, kPositionHidden}, at::kDouble);
  expected.narrow(0, 0, 4).fill_(6);
  EXPECT_TRUE(at::equal(positions->weight().grad(), expected));
}

TEST(LearnedPositions, GoOnBehindTheCache) {
  const Groups groups = Groups::single();
  auto positions = make_positions(double_context(groups));
  positions->weight().initialise(1);
  KvCache cache;
  cache.length = 6;
  ForwardContext forward = forward_of(2, 3);
  forward.cache = &cache;
  EXPECT_TRUE(at::equal(positions->forward(forward), positions->weight().data().narrow(0, 6, 3).repeat({2, 1})));
  cache.length = 7;
  EXPECT_THROW(positions->forward(forward), UserError);
}

TEST(LearnedPositions, OutsideTheTableThereAreNone) {
  const Groups groups = Groups::single();
  auto positions = make_positions(double_context(groups));
  positions->weight().initialise(1);
  EXPECT_NO_THROW(positions->forward(forward_of(1, 9)));
  for (const ForwardContext& forward : {forward_of(1, 10), forward_of(1, 2, at::tensor({3, 9}, at::kLong).unsqueeze(0)),
                                        forward_of(1, 2, at::tensor({-1, 3}, at::kLong).unsqueeze(0))}) {
    try {
      positions->forward(forward);
      ADD_FAILURE() << "no error";
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find("max_position_embeddings is 9"), std::string::npos) << error.what();
    }
  }
}

TEST(LearnedPositions, EveryRankHoldsTheSameWholeTable) {
  const Groups single = Groups::single();
  auto whole = make_positions(double_context(single));
  whole->weight().initialise(7);
  ThreadWorld(2).run(Mesh({.tp = 2}), [&](Groups& groups) {
    for (const bool is_sequence_parallel : {false, true}) {
      auto part = make_positions(double_context(groups, is_sequence_parallel));
      part->weight().initialise(7);
      EXPECT_TRUE(at::equal(part->weight().data(), whole->weight().data()));
      const Placement& placement = part->weight().placement();
      EXPECT_EQ(placement.replica_axes.text(), "tp_cp_dp");
      EXPECT_EQ(placement.partial_axes.text(), is_sequence_parallel ? "tp_cp_dp" : "cp_dp");
    }
  });
}

}  // namespace
}  // namespace megalith
