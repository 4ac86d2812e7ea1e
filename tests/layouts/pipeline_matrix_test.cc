// Pipelines of every schedule against a single rank, by themselves and with the other axes.
#include <gtest/gtest.h>

#include <map>

#include "layouts/forwarded_data_parallel.h"
#include "layouts/layout.h"
#include "parallel/fsdp.h"

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
  // With FSDP: weights gathered for each microbatch or kept for those in flight, copies of the shards.
  add({.dp = 2, .pp = 2, .micro_batch = 1, .data_parallel = fsdp()}, plain);
  add({.dp = 2, .pp = 2, .micro_batch = 1, .data_parallel = fsdp_kept()}, all);
  add({.dp = 2, .pp = 2, .micro_batch = 1, .data_parallel = fsdp(), .pipeline = algorithm("gpipe")}, tied);
  add({.dp = 4, .pp = 2, .dp_replicate = 2, .micro_batch = 1, .data_parallel = fsdp()}, tied);
  add({.dp = 2, .pp = 4, .micro_batch = 1, .data_parallel = fsdp(), .recompute = full}, deep(tied, 4));
  add({.dp = 2, .pp = 2, .data_parallel = fsdp(), .pipeline = virtual_stages(2)}, deep(qwen3, 4));
  add({.dp = 2, .pp = 2, .data_parallel = fsdp_kept(), .pipeline = virtual_stages(2)}, deep(all, 4));
  add({.dp = 2, .pp = 2, .micro_batch = 1, .data_parallel = fsdp(), .pipeline = algorithm("zero-bubble")}, all);
  add({.dp = 4,
       .pp = 2,
       .dp_replicate = 2,
       .micro_batch = 1,
       .data_parallel = fsdp_kept(),
       .pipeline = algorithm("zero-bubble")},
      plain);
  add({.tp = 2,
       .dp = 2,
       .pp = 2,
       .is_sequence_parallel = true,
       .data_parallel = fsdp(),
       .recompute = full,
       .pipeline = algorithm("zbv-formatted")},
      deep(all, 4));
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
  add({.dp = 2,
       .cp = 2,
       .pp = 2,
       .data_parallel = fsdp(),
       .cp_comm_type = {"all_gather"},
       .pipeline = algorithm("zbv-formatted")},
      deep(longer(all), 4));
  return list;
}

TEST(PipelineMatrix, EveryLayoutTrainsAsOneRankInFloat64) {
  EXPECT_GE(pipelines().size(), 24U);
  expect_as_one_rank_in_float64(pipelines());
}

TEST(PipelineMatrix, FusedOperatorsAgreeInFloat32) { expect_as_one_rank_in_float32(pipelines()); }

// FSDP whose ranks compare a step's peaks with what they state before it, and count gathers of dense weights.
class WatchedFsdp : public ForwardedDataParallel {
 public:
  WatchedFsdp(std::unique_ptr<DataParallel> inner, const BuiltModel& model, Groups groups,
              std::map<std::string, int>& gathers)
      : ForwardedDataParallel(std::move(inner), model), groups_(std::move(groups)), gathers_(gathers) {
    groups_.dp_shard_cp->set_trace_hook([this](TracePhase phase, const CollectiveRecord& record) {
      if (phase != TracePhase::kStart || record.kind != CollectiveKind::kAllGather) return;
      if (groups_.dp->rank() == 0) ++gathers_[record.label];
    });
  }
  ~WatchedFsdp() override { groups_.dp_shard_cp->set_trace_hook({}); }
  void begin_step() override {
    fsdp().reset_peak_memory();
    gathers_.clear();
    inner_->begin_step();
  }
  void finish_step() override {
    inner_->finish_step();
    const FsdpMemory& memory = fsdp().memory();
    EXPECT_EQ(memory.parameters.peak, fsdp().whole_parameter_bytes_bound()) << groups_.rank;
    // Reached where several microbatches are in flight, and equal parts meet.
    EXPECT_LE(memory.gradients.peak, fsdp().whole_gradient_bytes_bound()) << groups_.rank;
    EXPECT_GE(memory.gradients.peak, fsdp().whole_gradient_bytes_bound() / 2) << groups_.rank;
    EXPECT_EQ(memory.parameters.now + memory.gradients.now, 0) << groups_.rank;
  }

 private:
  Fsdp& fsdp() { return dynamic_cast<Fsdp&>(*inner_); }
  Groups groups_;
  std::map<std::string, int>& gathers_;
};

TEST(PipelineMatrix, FsdpHoldsWhatItStatesAndGathersByTheSchedule) {
  struct Case {
    DataParallelKind kind;
    PipelineOptions pipeline;
    int64_t num_layers;
    int first, last;  // gathers of the first and last layer of the first rank's first chunk, for four microbatches
  };
  for (const Case& one :
       {Case{fsdp(), {}, 4, 8, 5}, Case{fsdp_kept(), {}, 4, 1, 1}, Case{fsdp(), algorithm("zero-bubble"), 4, 8, 5},
        Case{fsdp(), virtual_stages(2), 8, 8, 8}}) {
    Layout layout{.dp = 2, .pp = 2, .data_parallel = one.kind, .pipeline = one.pipeline};
    layout.task.num_layers = one.num_layers;
    std::vector<std::map<std::string, int>> gathers(4);
    Mistake watched;
    watched.hooks.change_data_parallel = [&](std::unique_ptr<DataParallel> inner, const BuiltModel& model,
                                             const Groups& groups) -> std::unique_ptr<DataParallel> {
      return std::make_unique<WatchedFsdp>(std::move(inner), model, groups, gathers[static_cast<size_t>(groups.rank)]);
    };
    run_layout(layout, {}, /*num_steps=*/1, &watched);
    EXPECT_EQ(gathers[0]["model.layers.0 part 0"], one.first) << layout.text();
    EXPECT_EQ(gathers[0]["model.layers.1 part 0"], one.last) << layout.text();
  }
}

}  // namespace
}  // namespace megalith
