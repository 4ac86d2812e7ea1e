// Masked-LM training of a small encoder over every kind of layout against a single rank: what is masked, and how long a
// row is, are drawn for global rows; attention looks to both sides.
#include <gtest/gtest.h>

#include "layouts/layout.h"

namespace megalith {
namespace {

using namespace test;

std::vector<Layout> masked_layouts() {
  std::vector<Layout> list;
  const auto add = [&](Layout layout, TinyRun task) {
    if (layout.cp > 1) task.sequence = 8;
    task.is_masked = true;
    layout.task = task;
    list.push_back(std::move(layout));
  };
  const TinyRun tied{.is_tied = true}, dropout{.is_tied = true, .has_dropout = true};
  const TinyRun documents{.is_tied = true, .has_documents = true}, biased{.is_tied = true, .has_qkv_bias = true};
  // Accumulation and data parallelism: unlike numbers of masked tokens in each microbatch.
  add({.micro_batch = 1}, dropout);
  add({.dp = 4, .micro_batch = 1}, tied);
  add({.dp = 2, .micro_batch = 2, .data_parallel = zero1()}, dropout);
  add({.dp = 4, .micro_batch = 2, .data_parallel = fsdp()}, tied);
  // A split vocabulary, and split tokens.
  add({.tp = 2, .micro_batch = 4}, biased);
  add({.tp = 4, .is_sequence_parallel = true, .micro_batch = 4}, dropout);
  // Parts of a sequence whose keys lie on both sides, by every way to exchange them.
  add({.cp = 2, .micro_batch = 4}, tied);
  add({.cp = 2, .micro_batch = 4, .cp_comm_type = {"all_gather"}}, documents);
  add({.cp = 4, .micro_batch = 2, .cp_comm_type = {"a2a"}}, documents);
  add({.cp = 4, .micro_batch = 2, .cp_comm_type = {"a2a+p2p"}, .cp_ulysses = 2}, dropout);
  // The tied table at both ends of a pipeline.
  add({.pp = 2, .micro_batch = 2}, dropout);
  add({.dp = 2, .pp = 2, .micro_batch = 1, .data_parallel = zero1()}, documents);
  add({.tp = 2, .dp = 2, .cp = 2, .is_sequence_parallel = true, .micro_batch = 2, .data_parallel = zero1()}, documents);
  add({.tp = 2, .cp = 2, .pp = 2, .is_sequence_parallel = true, .micro_batch = 2}, tied);
  return list;
}

TEST(MaskedLayouts, EqualOneRankInFloat64) { expect_as_one_rank_in_float64(masked_layouts()); }

TEST(MaskedLayouts, EqualOneRankInFloat32) { expect_as_one_rank_in_float32(masked_layouts()); }

}  // namespace
}  // namespace megalith
