// Relative positions: buckets, slices of heads, and the gradient of one table that several layers use.
#include "nn/relative_bias.h"

#include <gtest/gtest.h>

#include "comm/thread_world.h"
#include "support/layer_tools.h"
#include "support/module_tools.h"

namespace megalith {
namespace {

using namespace test;

// As transformers 4.57.1 gives them for 32 buckets up to a distance of 128.
TEST(RelativeBias, BucketsAreThoseOfTransformers) {
  const std::vector<std::pair<int64_t, int64_t>> both_sides = {
      {-200, 15}, {-64, 14}, {-32, 12}, {-16, 10}, {-12, 9}, {-8, 8},  {-1, 1},  {0, 0},   {1, 17},
      {7, 23},    {8, 24},   {12, 25},  {16, 26},  {32, 28}, {64, 30}, {91, 31}, {128, 31}};
  const std::vector<std::pair<int64_t, int64_t>> causal = {{0, 0},    {-15, 15}, {-16, 16},  {-18, 16}, {-19, 17},
                                                           {-31, 21}, {-64, 26}, {-113, 31}, {5, 0}};
  for (const bool is_bidirectional : {true, false}) {
    for (const auto& [relative, bucket] : is_bidirectional ? both_sides : causal) {
      const at::Tensor found =
          relative_position_buckets(at::full({1}, relative, at::kLong), {.is_bidirectional = is_bidirectional});
      EXPECT_EQ(found.item<int64_t>(), bucket) << relative << (is_bidirectional ? " of both sides" : " causal");
    }
  }
}

// The table's entry for each pair of places; a later first query gives the later rows.
TEST(RelativeBias, AddsTheTablesEntryOfEachDistance) {
  const Groups groups = Groups::single();
  const RelativeBiasOptions options{.num_heads = 3, .num_buckets = 6, .max_distance = 5, .is_bidirectional = true};
  RelativeBias bias({.groups = &groups, .dtype = at::kDouble}, "table", options);
  load(bias, {{"table", at::randn({6, 3}, at::kDouble)}});
  const at::Tensor all = bias.forward(4, 7);
  ASSERT_EQ(all.sizes(), (std::vector<int64_t>{1, 3, 4, 7}));
  for (int64_t query = 0; query < 4; ++query) {
    for (int64_t key = 0; key < 7; ++key) {
      const int64_t bucket = relative_position_buckets(at::full({1}, key - query, at::kLong), options).item<int64_t>();
      EXPECT_TRUE(at::equal(all.select(3, key).select(2, query)[0], bias.weight().data()[bucket])) << query << key;
    }
  }
  EXPECT_TRUE(at::equal(bias.forward(2, 7, /*first_query=*/2), all.narrow(2, 2, 2)));
}

// Two uses of one result and a second call: each sends its part, and a rank gets those of its heads.
TEST(RelativeBias, TheTablesGradientIsTheSumOverItsUses) {
  const at::Tensor table = at::randn({8, 4}, at::kDouble), first = at::randn({1, 4, 5, 5}, at::kDouble),
                   second = at::randn({1, 4, 5, 5}, at::kDouble);
  const RelativeBiasOptions options{.num_heads = 4, .num_buckets = 8, .max_distance = 9};
  at::Tensor expected = at::zeros_like(table);
  for (int64_t query = 0; query < 5; ++query) {
    for (int64_t key = 0; key < 5; ++key) {
      const int64_t bucket = relative_position_buckets(at::full({1}, key - query, at::kLong), options).item<int64_t>();
      expected[bucket].add_((2 * first + second).select(3, key).select(2, query)[0]);
    }
  }
  ThreadWorld(2).run(Mesh({.tp = 2}), [&](Groups& groups) {
    RelativeBias bias({.groups = &groups, .dtype = at::kDouble}, "table", options);
    load(bias, {{"table", table}});
    attach_gradients(bias);
    const auto own = [&](const at::Tensor& x) { return x.narrow(1, 2 * groups.tp->rank(), 2); };
    const at::Tensor once = bias.forward(5, 5), again = bias.forward(5, 5);
    ((once * own(first)).sum() + (once * own(first)).sum() + (again * own(second)).sum()).backward();
    const at::Tensor found = bias.weight().grad();
    EXPECT_LT(relative_difference(found, expected.narrow(1, 2 * groups.tp->rank(), 2)), 1e-12);
  });
}

}  // namespace
}  // namespace megalith
