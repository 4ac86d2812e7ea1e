// Mixtures of experts over every combination of axes against a single rank: experts spread over ranks, each cut over
// ranks, with tensor, sequence, context, pipeline and data parallelism, sharded optimizer state and recomputation.
// Objectives that keep the experts balanced are part of what is compared, for they are defined per microbatch.
#include <gtest/gtest.h>

#include "layouts/layout.h"

namespace megalith {
namespace {

using namespace test;

const RecomputeOptions kFull{.recompute_granularity = "full", .recompute_method = "uniform", .recompute_num_layers = 1};

RecomputeOptions selective(std::vector<std::string> modules) {
  return {.recompute_granularity = "selective", .recompute_modules = std::move(modules)};
}

std::vector<Layout> expert_layouts() {
  std::vector<Layout> list;
  const auto add = [&](Layout layout, TinyRun task) {
    if (layout.cp > 1) task.sequence = 8;
    layout.task = task;
    list.push_back(std::move(layout));
  };
  const TinyRun mixtral{.family = "mixtral"};
  const TinyRun mixtral_all{.is_tied = true, .has_dropout = true, .has_documents = true, .family = "mixtral"};
  const TinyRun deepseek{.family = "deepseek"};
  const TinyRun deepseek_tied{.is_tied = true, .has_documents = true, .family = "deepseek"};
  TinyRun deep = deepseek, dropping = mixtral, dropping_deepseek = deepseek_tied;
  deep.num_layers = 4;
  dropping.has_capacity = dropping_deepseek.has_capacity = true;
  TinyRun dropping_ends = dropping;
  dropping_ends.drop_policy = DropPolicy::kPosition;

  // Only experts are spread over ranks that share the data.
  add({.dp = 2, .ep = 2}, mixtral);
  add({.dp = 2, .micro_batch = 2, .ep = 2, .dispatcher = "allgather"}, mixtral_all);
  add({.dp = 4, .ep = 4}, deepseek);
  add({.dp = 8, .ep = 8}, mixtral);
  add({.dp = 4, .micro_batch = 2, .ep = 2}, deepseek_tied);
  add({.dp = 4, .ep = 2, .dispatcher = "allgather"}, deepseek);
  // Each expert cut over ranks.
  add({.dp = 2, .etp = 2}, mixtral);
  add({.dp = 4, .ep = 2, .etp = 2}, deepseek);
  add({.tp = 2, .micro_batch = 2}, mixtral_all);
  add({.tp = 2, .is_sequence_parallel = true, .micro_batch = 2}, deepseek_tied);
  add({.tp = 2, .micro_batch = 2, .ep = 2, .etp = 1}, mixtral);
  add({.tp = 2, .is_sequence_parallel = true, .micro_batch = 4, .ep = 2, .etp = 1}, deepseek);
  add({.tp = 2, .dp = 2, .is_sequence_parallel = true, .micro_batch = 2, .ep = 2}, mixtral_all);
  add({.tp = 2, .dp = 2, .micro_batch = 1, .ep = 4, .etp = 1, .dispatcher = "allgather"}, deepseek);
  add({.tp = 4, .is_sequence_parallel = true, .micro_batch = 2, .ep = 2, .etp = 2}, deepseek_tied);
  add({.tp = 4, .dp = 2, .is_sequence_parallel = true, .micro_batch = 2, .ep = 8, .etp = 1}, mixtral);
  // With norms of heads, as Qwen3's mixtures have them.
  add({.tp = 2, .dp = 2, .is_sequence_parallel = true, .micro_batch = 2, .ep = 2},
      TinyRun{.has_documents = true, .has_head_norms = true, .family = "mixtral"});
  // Files that keep all experts of a layer in one tensor; biases of experts and of their router.
  const TinyRun gpt_oss{.has_documents = true, .family = "gpt_oss"};
  add({.dp = 4, .ep = 4, .dispatcher = "allgather"}, gpt_oss);
  add({.tp = 2, .micro_batch = 2}, gpt_oss);
  add({.tp = 2, .dp = 2, .is_sequence_parallel = true, .micro_batch = 2, .ep = 2, .etp = 2}, gpt_oss);
  add({.dp = 4, .data_parallel = zero1(), .ep = 2, .etp = 2}, gpt_oss);
  add({.tp = 2, .dp = 2, .micro_batch = 2, .data_parallel = fsdp()}, gpt_oss);
  add({.cp = 2, .micro_batch = 2, .recompute = kFull, .ep = 2}, gpt_oss);
  add({.tp = 2, .dp = 2, .pp = 2, .micro_batch = 2, .recompute = selective({"moe_act"}), .ep = 2, .etp = 1}, gpt_oss);
  TinyRun dropping_stack = gpt_oss;
  dropping_stack.has_capacity = true;
  add({.dp = 2, .micro_batch = 2, .ep = 2}, dropping_stack);
  // Chunks, layers that do not rotate, one expert a token beside a shared one.
  const TinyRun llama4{.family = "llama4"};
  add({.dp = 2, .micro_batch = 2, .data_parallel = zero1(), .ep = 2}, llama4);
  add({.tp = 2, .is_sequence_parallel = true, .micro_batch = 2, .recompute = kFull}, llama4);
  add({.dp = 2, .cp = 2, .micro_batch = 2, .ep = 2}, llama4);
  add({.dp = 2, .pp = 2, .micro_batch = 2, .recompute = selective({"core_attn", "moe"}), .ep = 2}, llama4);
  // Shared sequences.
  add({.cp = 2, .micro_batch = 2, .ep = 2}, mixtral_all);
  add({.dp = 2, .cp = 2, .micro_batch = 2, .cp_comm_type = {"a2a"}, .ep = 4}, deepseek);
  add({.tp = 2, .cp = 2, .is_sequence_parallel = true, .micro_batch = 2, .ep = 4, .etp = 1}, deepseek_tied);
  add({.dp = 2, .cp = 2, .micro_batch = 2, .cp_comm_type = {"all_gather"}, .ep = 2, .etp = 2}, mixtral);
  // A way for each layer; the prediction module takes the last layer's.
  add({.cp = 2, .micro_batch = 2, .cp_comm_type = {"p2p", "a2a"}, .ep = 2}, deepseek);
  add({.cp = 2, .pp = 2, .micro_batch = 2, .cp_comm_type = {"a2a", "all_gather"}}, deepseek);
  // Pipelines; the embedding is used at both ends by the prediction module.
  add({.dp = 2, .pp = 2, .micro_batch = 2, .ep = 2}, deepseek);
  add({.dp = 2, .pp = 2, .micro_batch = 1, .pipeline = {.num_virtual_stages_per_pipeline_rank = 2}, .ep = 2}, deep);
  add({.tp = 2, .dp = 2, .pp = 2, .is_sequence_parallel = true, .micro_batch = 2, .ep = 2, .etp = 2}, deepseek_tied);
  add({.dp = 2, .pp = 2, .micro_batch = 2, .pipeline = {.pp_algorithm = "zero-bubble"}, .ep = 2}, mixtral_all);
  add({.tp = 2, .cp = 2, .pp = 2, .micro_batch = 2, .ep = 4, .etp = 1}, mixtral);
  // Sharded optimizer state and parameters.
  add({.dp = 4, .data_parallel = zero1(), .ep = 2}, deepseek_tied);
  add({.tp = 2, .dp = 2, .is_sequence_parallel = true, .micro_batch = 2, .data_parallel = zero1(), .ep = 2, .etp = 1},
      mixtral_all);
  add({.dp = 8, .dp_replicate = 2, .data_parallel = zero1(), .ep = 2}, mixtral);
  add({.dp = 2, .pp = 2, .micro_batch = 2, .data_parallel = zero1(), .ep = 2}, deepseek_tied);
  add({.tp = 2, .dp = 2, .micro_batch = 2, .data_parallel = fsdp()}, mixtral_all);
  // Experts divided over ranks of their own, one of them or several, and over copies; beside biases and a prediction
  // module.
  add({.dp = 4, .data_parallel = fsdp(), .ep = 4}, deepseek);
  add({.dp = 4, .data_parallel = fsdp(), .ep = 2}, deepseek_tied);
  add({.dp = 4, .data_parallel = fsdp(), .ep = 2, .etp = 2}, gpt_oss);
  add({.dp = 8, .dp_replicate = 2, .data_parallel = fsdp(), .ep = 2}, mixtral);
  add({.tp = 2, .dp = 2, .is_sequence_parallel = true, .micro_batch = 2, .data_parallel = fsdp(), .ep = 2, .etp = 1},
      mixtral_all);
  add({.dp = 2, .cp = 2, .micro_batch = 2, .data_parallel = fsdp(), .recompute = kFull, .ep = 2}, llama4);
  add({.dp = 2, .micro_batch = 2, .data_parallel = fsdp_kept(), .ep = 2}, dropping);
  add({.dp = 2, .pp = 2, .micro_batch = 1, .data_parallel = fsdp(), .ep = 2}, deepseek_tied);
  add({.dp = 4, .pp = 2, .micro_batch = 1, .data_parallel = fsdp(), .recompute = kFull, .ep = 2, .etp = 1}, gpt_oss);
  add({.dp = 2,
       .pp = 2,
       .micro_batch = 1,
       .data_parallel = fsdp_kept(),
       .pipeline = {.num_virtual_stages_per_pipeline_rank = 2},
       .ep = 2},
      deep);
  add({.dp = 2,
       .pp = 2,
       .micro_batch = 2,
       .data_parallel = fsdp(),
       .pipeline = {.pp_algorithm = "zero-bubble"},
       .ep = 2},
      mixtral_all);
  add({.dp = 4,
       .pp = 2,
       .micro_batch = 1,
       .data_parallel = fsdp(),
       .pipeline = {.pp_algorithm = "zbv-formatted"},
       .ep = 2},
      deep);
  // Recomputed; the shared expert beside the exchange.
  add({.dp = 2, .micro_batch = 2, .recompute = kFull, .ep = 2}, deepseek);
  add({.dp = 2,
       .micro_batch = 2,
       .recompute = selective({"moe", "layernorm"}),
       .ep = 2,
       .overlaps_shared_expert = true},
      deepseek);
  add({.tp = 2,
       .is_sequence_parallel = true,
       .micro_batch = 2,
       .recompute = selective({"moe_act", "shared_experts", "mla_up_proj", "core_attn"}),
       .ep = 2,
       .etp = 1,
       .overlaps_shared_expert = true},
      deepseek_tied);
  // The same tokens are dropped on every layout.
  add({.dp = 2, .micro_batch = 2, .ep = 2}, dropping);
  add({.tp = 2, .is_sequence_parallel = true, .micro_batch = 4, .ep = 2, .etp = 1}, dropping_deepseek);
  add({.dp = 2, .cp = 2, .micro_batch = 2, .ep = 4, .dispatcher = "allgather"}, dropping);
  add({.tp = 2, .is_sequence_parallel = true, .micro_batch = 4, .ep = 2, .etp = 1}, dropping_ends);
  add({.tp = 2, .cp = 2, .is_sequence_parallel = true, .micro_batch = 2, .ep = 4, .etp = 1}, dropping_ends);
  return list;
}

TEST(ExpertMatrix, EveryLayoutIsAsOneRankInFloat64) { expect_as_one_rank_in_float64(expert_layouts()); }
TEST(ExpertMatrix, FusedOperatorsAreAsOneRankInFloat32) { expect_as_one_rank_in_float32(expert_layouts()); }

}  // namespace
}  // namespace megalith
