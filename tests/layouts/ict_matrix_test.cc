// Two encoders, and one for both, whose loss is of a set of samples: equal sets give the same loss and gradients
// however they lie over data-parallel ranks.
#include <gtest/gtest.h>

#include "layouts/layout_list.h"

namespace megalith {
namespace {

using namespace test;

TinyRun ict_run(const std::string& family, bool has_dropout = true, int64_t num_layers = 2) {
  return {.has_dropout = has_dropout, .num_layers = num_layers, .num_kv_heads = 8, .family = family};
}

std::vector<Layout> ict_layouts() {
  LayoutList list;
  const TinyRun two = ict_run("biencoder"), shared = ict_run("biencoder_shared");
  const TinyRun deep = ict_run("biencoder", true, 3), undropped = ict_run("biencoder", false);
  // Sets of 8, 4 and 2, in one microbatch or accumulated.
  list.add({.dp = 8, .micro_batch = 1}, two);
  list.add({.dp = 4, .micro_batch = 2}, two);
  list.add({.dp = 2, .micro_batch = 2}, undropped);
  list.add({.dp = 2, .micro_batch = 1}, shared);
  list.add({.dp = 2, .micro_batch = 4}, shared);
  list.add({.dp = 2, .micro_batch = 2, .data_parallel = zero1()}, two);
  list.add({.dp = 4, .micro_batch = 1, .data_parallel = zero1(), .recompute = within_layers()}, shared);
  list.add({.dp = 4, .micro_batch = 2, .data_parallel = fsdp()}, two);
  list.add({.dp = 2, .micro_batch = 2, .data_parallel = fsdp(), .recompute = every_layer()}, shared);
  // Recomputation; blocks of two layers, of which no block has those of both encoders.
  list.add({.micro_batch = 4, .recompute = within_layers()}, two);
  list.add({.micro_batch = 2, .recompute = every_layer(2)}, deep);
  list.add({.dp = 2, .micro_batch = 2, .recompute = first_layers(5, 3)}, deep);
  return list.layouts();
}

TEST(IctLayouts, EqualOneRankInFloat64) { expect_as_one_rank_in_float64(ict_layouts()); }
TEST(IctLayouts, EqualOneRankInFloat32) { expect_as_one_rank_in_float32(ict_layouts()); }

using Kind = CollectiveKind;
using How = WrongCollective::How;

TEST(IctLayouts, SeeMistakesOfTheSet) {
  const Layout layout{.dp = 4, .micro_batch = 2, .task = ict_run("biencoder", /*has_dropout=*/false)};
  const std::string vectors = "vectors of texts";
  const std::vector<Mistake> mistakes = {
      wrong_exchange("own texts in the places of the others'", {Kind::kAllGather, vectors}),
      wrong_exchange("the ranks' texts in another order", {Kind::kAllGather, vectors, How::kReverse}),
      wrong_exchange("only the own slice of the texts' gradient", {Kind::kReduceScatter, vectors}),
      wrong_exchange("another rank's slice of it", {Kind::kReduceScatter, vectors, How::kReverse}),
      wrong_exchange("a mean of the ranks' gradients of a text", {Kind::kReduceScatter, vectors, How::kAverage}),
  };
  for (const Mistake& mistake : mistakes) expect_mistake_is_seen(layout, mistake);
}

}  // namespace
}  // namespace megalith
