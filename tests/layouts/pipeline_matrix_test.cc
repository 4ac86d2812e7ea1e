// Pipelines of every schedule against a single rank, by themselves and with the other axes.
#include <gtest/gtest.h>

#include "layouts/layout.h"

namespace megalith {
namespace {

using namespace test;

PipelineOptions algorithm(std::string name) { return {.pp_algorithm = std::move(name)}; }

PipelineOptions virtual_stages(int64_t count, std::optional<int64_t> group = {}) {
  return {.num_virtual_stages_per_pipeline_rank = count, .microbatch_group_size_per_virtual_pipeline_stage = group};
}

std::vector<Layout> pipelines() {
  std::vector<Layout> list;
  const auto add = [&](Layout layout, const TinyRun& task) {
    layout.task = task;
    list.push_back(std::move(layout));
  };
  const auto deep = [](TinyRun task, int64_t layers) {
    task.num_layers = layers;
    return task;
  };
  const TinyRun plain, tied{.is_tied = true};
  const TinyRun all{.is_tied = true, .has_dropout = true, .has_documents = true, .has_qkv_bias = true};
  const TinyRun qwen{.has_documents = true, .has_qkv_bias = true};
  const TinyRun qwen3{.is_tied = true, .has_documents = true, .has_head_norms = true};
  const TinyRun twelve{.has_dropout = true, .global_batch = 12, .sequence = 7};
  const RecomputeOptions full{
      .recompute_granularity = "full", .recompute_method = "uniform", .recompute_num_layers = 1};
  const RecomputeOptions selective{.recompute_granularity = "selective",
                                   .recompute_modules = {"core_attn", "layernorm", "mlp_act"}};

  // Every schedule by itself; fewer microbatches than stages as well.
  add({.pp = 2, .pipeline = algorithm("gpipe")}, all);
  add({.pp = 2}, plain);
  add({.pp = 2, .micro_batch = 8}, all);
  add({.pp = 4, .micro_batch = 2}, deep(tied, 4));
  add({.pp = 4, .micro_batch = 4}, deep(qwen, 4));
  add({.pp = 2, .pipeline = virtual_stages(2)}, deep(all, 4));
  add({.pp = 2, .micro_batch = 2, .pipeline = virtual_stages(3)}, deep(twelve, 6));
  add({.pp = 4, .pipeline = virtual_stages(2)}, deep(tied, 8));
  add({.pp = 2, .pipeline = virtual_stages(2, 4)}, deep(qwen, 4));
  add({.pp = 2, .pipeline = algorithm("zero-bubble")}, all);
  add({.pp = 4, .micro_batch = 2, .pipeline = algorithm("zero-bubble")}, deep(twelve, 4));
  add({.pp = 2, .pipeline = algorithm("zbv-formatted")}, deep(all, 4));
  add({.pp = 4, .pipeline = algorithm("zbv-formatted")}, deep(qwen, 8));
  // Uneven stages.
  add({.pp = 2, .pipeline = {.decoder_first_pipeline_num_layers = 1}}, deep(tied, 4));
  add({.pp = 3, .micro_batch = 2, .pipeline = {.pipeline_model_parallel_layout = "Et|tt|L"}}, deep(twelve, 3));
  add({.pp = 2, .pipeline = {.pipeline_model_parallel_layout = "E|t|tt|tL"}}, deep(all, 4));
  // With tensor, sequence and data parallelism, sharded optimizer state, recomputation.
  add({.tp = 2, .pp = 2, .micro_batch = 2}, all);
  add({.tp = 2, .pp = 2, .is_sequence_parallel = true, .micro_batch = 2, .pipeline = algorithm("zero-bubble")}, all);
  add({.dp = 2, .pp = 2, .micro_batch = 2}, tied);
  add({.dp = 2, .pp = 2, .micro_batch = 1, .data_parallel = zero1()}, all);
  add({.dp = 4, .pp = 2, .dp_replicate = 2, .micro_batch = 1, .data_parallel = zero1()}, tied);
  add({.tp = 2,
       .dp = 2,
       .pp = 2,
       .is_sequence_parallel = true,
       .data_parallel = zero1(),
       .pipeline = virtual_stages(2)},
      deep(all, 4));
  add({.tp = 2, .dp = 2, .pp = 2, .data_parallel = zero1(), .pipeline = algorithm("zbv-formatted")}, deep(all, 4));
  add({.tp = 2, .pp = 2, .is_sequence_parallel = true, .micro_batch = 2, .pipeline = algorithm("zero-bubble")}, qwen3);
  add({.dp = 2, .pp = 2, .data_parallel = zero1(), .pipeline = virtual_stages(2)}, deep(qwen3, 4));
  const TinyRun olmo{.has_dropout = true, .has_documents = true, .is_olmo = true};
  add({.tp = 2, .pp = 2, .is_sequence_parallel = true, .micro_batch = 2, .pipeline = algorithm("zero-bubble")}, olmo);
  add({.dp = 2, .pp = 2, .data_parallel = zero1(), .pipeline = virtual_stages(2)}, deep(olmo, 4));
  add({.pp = 2, .recompute = full, .pipeline = virtual_stages(2)}, deep(all, 4));
  add({.tp = 2, .pp = 2, .is_sequence_parallel = true, .recompute = full, .pipeline = algorithm("zero-bubble")}, all);
  add({.dp = 2, .pp = 2, .recompute = selective, .pipeline = algorithm("zbv-formatted")}, deep(all, 4));
  // With shared sequences.
  const auto longer = [](TinyRun task) {
    task.sequence = 8;
    return task;
  };
  add({.cp = 2, .pp = 2, .micro_batch = 2}, longer(tied));
  add({.tp = 2, .cp = 2, .pp = 2, .is_sequence_parallel = true, .micro_batch = 2}, longer(all));
  add({.pp = 3, .micro_batch = 4}, {.has_documents = true, .num_layers = 3, .window = 3, .windowed_layers = "[0,1,0]"});
  add({.tp = 2, .pp = 2, .is_sequence_parallel = true, .micro_batch = 2, .pipeline = algorithm("zero-bubble")},
      {.is_tied = true, .has_documents = true, .window = 3, .windowed_layers = "2", .family = "gemma2"});
  add({.cp = 2, .pp = 2, .cp_comm_type = {"a2a"}, .pipeline = algorithm("zero-bubble")}, longer(all));
  add({.cp = 4,
       .pp = 2,
       .micro_batch = 2,
       .cp_comm_type = {"a2a+p2p"},
       .cp_ulysses = 2,
       .pipeline = algorithm("zbv-formatted")},
      deep(longer(all), 4));
  add({.dp = 2,
       .cp = 2,
       .pp = 2,
       .data_parallel = zero1(),
       .cp_comm_type = {"all_gather"},
       .pipeline = virtual_stages(2)},
      deep(longer(all), 4));
  add({.cp = 2, .pp = 2, .micro_batch = 2, .recompute = full, .cp_comm_type = {"p2p"}}, longer(all));
  return list;
}

TEST(PipelineMatrix, EveryLayoutTrainsAsOneRankInFloat64) {
  EXPECT_GE(pipelines().size(), 24U);
  expect_as_one_rank_in_float64(pipelines());
}

TEST(PipelineMatrix, FusedOperatorsAgreeInFloat32) { expect_as_one_rank_in_float32(pipelines()); }

}  // namespace
}  // namespace megalith
