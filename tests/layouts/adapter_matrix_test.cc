// Training of low-rank adapters over every kind of layout against a single rank: the base is frozen, A and B lie as the
// layers beside which they stand say, and dropout is drawn for global tokens and columns.
#include <gtest/gtest.h>

#include "layouts/layout.h"

namespace megalith {
namespace {

using namespace test;

std::vector<Layout> adapter_layouts() {
  std::vector<Layout> list;
  const auto add = [&](Layout layout, TinyRun task) {
    if (layout.cp > 1) task.sequence = 8;
    layout.task = task;
    list.push_back(std::move(layout));
  };
  // Parts of a fused layer with an A of their own, some without an adapter; and all that share one.
  const TinyRun apart{.is_tied = true, .adapters = {"q_proj", "v_proj", "down_proj"}};
  const TinyRun fused{.adapters = {"linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"}};
  const TinyRun all{.is_tied = true, .has_documents = true, .has_qkv_bias = true, .adapters = {"all-linear"}};
  TinyRun dropped = all, dropped_behind = fused, transposed = apart, latent = apart;
  dropped.adapter_dropout = dropped_behind.adapter_dropout = 0.3;
  dropped_behind.drops_what_adapters_add = true;
  transposed.family = "gpt";
  transposed.adapters = {"linear_qkv", "c_proj"};
  latent.family = "deepseek";
  latent.adapters = {"q_proj", "kv_b_proj", "kv_a_proj_with_mqa", "o_proj"};
  TinyRun experts{.family = "mixtral", .adapters = {"q_proj", "v_proj"}};
  // Experts: gate, up and down apart, and gate and up with one A; of every rank, cut over it, or both.
  TinyRun apart_experts = experts, fused_experts = experts, of_latent = latent;
  apart_experts.adapters = {"gate_proj", "down_proj"};
  fused_experts.adapters = {"linear_qkv", "linear_fc1", "linear_fc2"};
  of_latent.adapters = {"all-linear"};
  TinyRun lengths = apart, all_lengths = all;
  lengths.has_lengths = all_lengths.has_lengths = true;
  // In four bits, blocks and groups of blocks are those of whole matrices, however they are cut.
  TinyRun packed = fused, packed_apart = apart, packed_lengths = lengths, packed_experts = fused_experts;
  packed.is_packed = packed_apart.is_packed = packed_lengths.is_packed = packed_experts.is_packed = true;
  const RecomputeOptions full{
      .recompute_granularity = "full", .recompute_method = "uniform", .recompute_num_layers = 1};
  const RecomputeOptions selective{.recompute_granularity = "selective", .recompute_modules = {"core_attn", "mlp"}};

  add({.micro_batch = 2}, fused);
  add({.dp = 4, .micro_batch = 1}, apart);
  add({.dp = 2, .micro_batch = 2, .data_parallel = zero1()}, dropped);
  add({.dp = 4, .micro_batch = 1, .data_parallel = fsdp()}, fused);
  add({.tp = 2, .micro_batch = 4}, apart);
  add({.tp = 4, .micro_batch = 2}, dropped);
  add({.tp = 2, .is_sequence_parallel = true, .micro_batch = 4}, fused);
  add({.tp = 4, .is_sequence_parallel = true, .micro_batch = 2}, dropped);
  add({.tp = 2, .dp = 2, .is_sequence_parallel = true, .micro_batch = 2}, dropped_behind);
  add({.cp = 2, .micro_batch = 4}, all);
  add({.cp = 2, .micro_batch = 2, .cp_comm_type = {"a2a"}}, dropped);
  add({.pp = 2, .micro_batch = 2}, all);
  add({.dp = 2, .pp = 2, .micro_batch = 1, .data_parallel = zero1()}, fused);
  add({.tp = 2, .dp = 2, .cp = 2, .is_sequence_parallel = true, .micro_batch = 2, .data_parallel = zero1()}, dropped);
  add({.tp = 2, .micro_batch = 4, .recompute = full}, dropped);
  add({.tp = 2, .is_sequence_parallel = true, .micro_batch = 4, .recompute = selective}, dropped_behind);
  add({.tp = 2, .micro_batch = 4}, transposed);
  add({.tp = 2, .dp = 2, .is_sequence_parallel = true, .micro_batch = 2, .ep = 2}, latent);
  add({.dp = 2, .micro_batch = 2, .ep = 2}, experts);
  add({.dp = 2, .micro_batch = 2, .ep = 2}, fused_experts);
  add({.dp = 4, .micro_batch = 1, .data_parallel = zero1(), .ep = 2}, apart_experts);
  add({.dp = 2, .micro_batch = 2, .data_parallel = fsdp()}, fused_experts);
  add({.dp = 4, .micro_batch = 1, .data_parallel = fsdp(), .ep = 2, .etp = 2}, fused_experts);
  add({.dp = 2, .pp = 2, .micro_batch = 1, .data_parallel = fsdp()}, all);
  add({.dp = 2, .pp = 2, .micro_batch = 1, .data_parallel = fsdp(), .pipeline = {.pp_algorithm = "zero-bubble"}},
      dropped);
  add({.tp = 2, .is_sequence_parallel = true, .micro_batch = 4}, apart_experts);
  add({.tp = 2, .micro_batch = 4}, fused_experts);
  add({.tp = 2, .dp = 2, .is_sequence_parallel = true, .micro_batch = 2, .ep = 2, .etp = 2}, fused_experts);
  add({.tp = 2, .dp = 2, .is_sequence_parallel = true, .micro_batch = 2, .ep = 4, .etp = 1}, apart_experts);
  add({.tp = 2, .pp = 2, .is_sequence_parallel = true, .micro_batch = 2, .recompute = full}, of_latent);
  add({.dp = 2, .micro_batch = 2, .data_parallel = zero1()}, lengths);
  add({.dp = 2, .micro_batch = 2, .data_parallel = fsdp()}, all_lengths);
  add({.tp = 2, .micro_batch = 4}, lengths);
  add({.tp = 2, .dp = 2, .is_sequence_parallel = true, .micro_batch = 2}, all_lengths);
  add({.tp = 2, .cp = 2, .micro_batch = 4, .recompute = selective}, all_lengths);
  add({.pp = 2, .micro_batch = 2, .recompute = full}, lengths);
  add({.dp = 2, .micro_batch = 2, .data_parallel = zero1()}, packed);
  add({.tp = 2, .micro_batch = 4, .recompute = full}, packed);
  add({.tp = 4, .is_sequence_parallel = true, .micro_batch = 2}, packed_apart);
  add({.tp = 2, .cp = 2, .micro_batch = 4}, packed_lengths);
  add({.tp = 2, .pp = 2, .micro_batch = 2}, packed_apart);
  add({.tp = 2, .dp = 2, .is_sequence_parallel = true, .micro_batch = 2, .ep = 2, .etp = 2}, packed_experts);
  add({.tp = 2, .dp = 2, .is_sequence_parallel = true, .micro_batch = 2, .ep = 4, .etp = 1}, packed_experts);
  return list;
}

TEST(AdapterMatrix, EveryLayoutTrainsAsOneRankInFloat64) { expect_as_one_rank_in_float64(adapter_layouts()); }

TEST(AdapterMatrix, FusedOperatorsAreAsOneRankInFloat32) { expect_as_one_rank_in_float32(adapter_layouts()); }

}  // namespace
}  // namespace megalith
