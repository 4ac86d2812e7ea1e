// Fine-tuning on packed answers, and on pairs of them, over every kind of layout against a single rank; and packed rows
// against rows of one sample each.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "layouts/layout.h"

namespace megalith {
namespace {

using namespace test;

std::vector<Layout> sft_layouts() {
  std::vector<Layout> list;
  const auto add = [&](Layout layout, TinyRun task) {
    task.sequence = 16;
    layout.task = task;
    list.push_back(std::move(layout));
  };
  const TinyRun answers{.is_tied = true, .packs = "answers"}, pairs{.packs = "pairs"};
  const TinyRun ratings{.packs = "ratings"};
  const TinyRun dropped{.has_dropout = true, .packs = "answers"};
  TinyRun experts{.family = "mixtral", .packs = "answers"}, pairs_of_experts = experts;
  pairs_of_experts.packs = "pairs";
  TinyRun adapters{.adapters = {"all-linear"}, .packs = "pairs"};
  TinyRun capped{.family = "gemma2", .packs = "pairs"};  // logits that are capped, and a table at both ends
  capped.is_tied = true;
  const RecomputeOptions full{
      .recompute_granularity = "full", .recompute_method = "uniform", .recompute_num_layers = 1};
  const RecomputeOptions selective{.recompute_granularity = "selective", .recompute_modules = {"core_attn", "mlp"}};

  add({.micro_batch = 2}, answers);
  add({.micro_batch = 2}, pairs);
  add({.dp = 4, .micro_batch = 1}, answers);
  add({.dp = 4, .micro_batch = 1}, pairs);
  add({.dp = 4, .micro_batch = 1}, ratings);
  add({.tp = 2, .is_sequence_parallel = true, .micro_batch = 4}, ratings);
  add({.cp = 2, .pp = 2, .micro_batch = 2}, ratings);
  add({.dp = 2, .micro_batch = 2, .data_parallel = zero1()}, dropped);
  add({.dp = 2, .micro_batch = 2, .data_parallel = zero1()}, pairs);
  add({.dp = 4, .micro_batch = 2, .data_parallel = fsdp()}, answers);
  add({.dp = 4, .micro_batch = 2, .data_parallel = fsdp()}, pairs);
  add({.tp = 2, .micro_batch = 4}, pairs);
  add({.tp = 4, .is_sequence_parallel = true, .micro_batch = 2}, answers);
  add({.tp = 4, .is_sequence_parallel = true, .micro_batch = 2}, pairs);
  add({.pp = 2, .micro_batch = 2}, answers);
  add({.pp = 2, .micro_batch = 2}, capped);
  add({.cp = 2, .micro_batch = 2}, answers);
  add({.cp = 2, .micro_batch = 2}, pairs);
  add({.cp = 4, .micro_batch = 2, .cp_comm_type = {"a2a"}}, pairs);
  add({.dp = 2, .micro_batch = 2, .ep = 2}, experts);
  add({.dp = 2, .micro_batch = 2, .ep = 2}, pairs_of_experts);
  add({.tp = 2, .micro_batch = 4, .recompute = full}, dropped);
  add({.tp = 2, .is_sequence_parallel = true, .micro_batch = 4, .recompute = selective}, pairs);
  add({.tp = 2, .dp = 2, .cp = 2, .is_sequence_parallel = true, .micro_batch = 2, .data_parallel = zero1()}, pairs);
  add({.tp = 2, .cp = 2, .pp = 2, .is_sequence_parallel = true, .micro_batch = 2}, answers);
  add({.tp = 2, .cp = 2, .pp = 2, .is_sequence_parallel = true, .micro_batch = 2}, adapters);
  return list;
}

TEST(SftMatrix, EveryLayoutTrainsAsOneRankInFloat64) { expect_as_one_rank_in_float64(sft_layouts()); }

TEST(SftMatrix, FusedOperatorsAreAsOneRankInFloat32) { expect_as_one_rank_in_float32(sft_layouts()); }

// The same samples, each once in a step: in rows of their own, or as many as fit in one.
std::pair<Layout, Layout> packed_and_not(const std::string& packs) {
  Layout packed{.micro_batch = 1}, apart{.micro_batch = 1};
  packed.task = {.sequence = 16, .packs = packs};
  apart.task = {.sequence = 16, .packs = packs, .has_one_sample_a_row = true};
  for (Layout* layout : {&packed, &apart}) layout->task.global_batch = rows_of_packs(layout->task);
  return {packed, apart};
}

std::string difference(const Layout& packed, const Layout& apart, const Mistake* mistake = nullptr) {
  return compare(packed, run_layout(packed, {}, 1, mistake), run_layout(apart, {}, 1)[0], 1e-9).first_failure;
}

TEST(SftMatrix, PackedRowsAreAsRowsOfOneSampleInFloat64) {
  for (const char* packs : {"answers", "pairs", "ratings"}) {
    const auto [packed, apart] = packed_and_not(packs);
    EXPECT_LT(packed.task.global_batch, apart.task.global_batch);
    EXPECT_EQ(difference(packed, apart), "");
  }
}

// Or the comparison could not fail.
TEST(SftMatrix, MistakesOfPacksAreSeen) {
  const auto mistake = [](std::string name, const std::function<void(Batch&)>& change) {
    return Mistake{.name = std::move(name),
                   .hooks = {.change_batches = [change](std::vector<Batch>& batches, const Groups&) {
                     for (Batch& batch : batches) change(batch);
                   }}};
  };
  const Mistake mistakes[] = {
      mistake("the mask is one token late",
              [](Batch& batch) { batch.set(field::kLossWeights, batch.at(field::kLossWeights).roll(1, 1)); }),
      mistake("samples see those before them", [](Batch& batch) { batch.at(field::kDocumentIds).zero_(); })};
  const auto [packed, apart] = packed_and_not("answers");
  for (const Mistake& one : mistakes) EXPECT_NE(difference(packed, apart, &one), "") << one.name;
}

}  // namespace
}  // namespace megalith
