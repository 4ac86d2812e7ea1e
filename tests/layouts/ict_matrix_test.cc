// Two encoders, and one for both, whose loss is of a set of samples: equal sets give the same loss and gradients
// however they lie over data-parallel ranks.
#include <gtest/gtest.h>

#include "layouts/layout.h"
#include "layouts/mutant_group.h"

namespace megalith {
namespace {

using namespace test;

TinyRun ict_run(const std::string& family, bool has_dropout = true, int64_t num_layers = 2) {
  return {.has_dropout = has_dropout, .num_layers = num_layers, .num_kv_heads = 8, .family = family};
}

std::vector<Layout> ict_layouts() {
  std::vector<Layout> list;
  const auto add = [&](Layout layout, const TinyRun& task) {
    layout.task = task;
    list.push_back(std::move(layout));
  };
  const TinyRun two = ict_run("biencoder"), shared = ict_run("biencoder_shared");
  const TinyRun deep = ict_run("biencoder", true, 3), undropped = ict_run("biencoder", false);
  const RecomputeOptions full{
      .recompute_granularity = "full", .recompute_method = "uniform", .recompute_num_layers = 1};
  const RecomputeOptions in_twos{
      .recompute_granularity = "full", .recompute_method = "uniform", .recompute_num_layers = 2};
  const RecomputeOptions offloaded{.recompute_granularity = "full",
                                   .recompute_method = "block",
                                   .recompute_num_layers = 5,
                                   .cpu_offloading_num_layers = 3};
  const RecomputeOptions selective{.recompute_granularity = "selective",
                                   .recompute_modules = {"core_attn", "layernorm", "mlp_act"}};
  // Sets of 8, 4 and 2, in one microbatch or accumulated.
  add({.dp = 8, .micro_batch = 1}, two);
  add({.dp = 4, .micro_batch = 2}, two);
  add({.dp = 2, .micro_batch = 2}, undropped);
  add({.dp = 2, .micro_batch = 1}, shared);
  add({.dp = 2, .micro_batch = 4}, shared);
  add({.dp = 2, .micro_batch = 2, .data_parallel = zero1()}, two);
  add({.dp = 4, .micro_batch = 1, .data_parallel = zero1(), .recompute = selective}, shared);
  add({.dp = 4, .micro_batch = 2, .data_parallel = fsdp()}, two);
  add({.dp = 2, .micro_batch = 2, .data_parallel = fsdp(), .recompute = full}, shared);
  // Recomputation; blocks of two layers, of which no block has those of both encoders.
  add({.micro_batch = 4, .recompute = selective}, two);
  add({.micro_batch = 2, .recompute = in_twos}, deep);
  add({.dp = 2, .micro_batch = 2, .recompute = offloaded}, deep);
  return list;
}

TEST(IctLayouts, EqualOneRankInFloat64) { expect_as_one_rank_in_float64(ict_layouts()); }
TEST(IctLayouts, EqualOneRankInFloat32) { expect_as_one_rank_in_float32(ict_layouts()); }

using Kind = CollectiveKind;
using How = WrongCollective::How;

Mistake wrong_vectors(std::string name, const WrongCollective& wrong) {
  return {.name = std::move(name), .hooks = {.change_groups = [=](Groups& groups) { replace_groups(groups, wrong); }}};
}

TEST(IctLayouts, SeeMistakesOfTheSet) {
  const Layout layout{.dp = 4, .micro_batch = 2, .task = ict_run("biencoder", /*has_dropout=*/false)};
  const std::string vectors = "vectors of texts";
  const std::vector<Mistake> mistakes = {
      wrong_vectors("own texts in the places of the others'", {Kind::kAllGather, vectors}),
      wrong_vectors("the ranks' texts in another order", {Kind::kAllGather, vectors, How::kReverse}),
      wrong_vectors("only the own slice of the texts' gradient", {Kind::kReduceScatter, vectors}),
      wrong_vectors("another rank's slice of it", {Kind::kReduceScatter, vectors, How::kReverse}),
      wrong_vectors("a mean of the ranks' gradients of a text", {Kind::kReduceScatter, vectors, How::kAverage}),
  };
  const RankOutcome& expected = single_rank_outcome(layout, {}, 2);
  for (const Mistake& mistake : mistakes) {
    EXPECT_GT(compare(layout, run_layout(layout, {}, 2, &mistake), expected, 1e-9).worst, 1e-5) << mistake.name;
  }
}

}  // namespace
}  // namespace megalith
